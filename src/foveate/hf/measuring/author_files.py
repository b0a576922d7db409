"""Profiles from the files that the authors of methods publish."""

from __future__ import annotations

from pathlib import Path

from torch import nn
from transformers import PreTrainedModel

from foveate.compression.composition import name_and_arguments, policy
from foveate.errors import InvalidInput, suggest
from foveate.hf.layer.support import check_model, compressible_layers, model_name, text_config
from foveate.hf.measuring.calibrate import profile_of
from foveate.hf.measuring.heads import import_head_scores
from foveate.policies.heads import HEAD_FILES
from foveate.profiles.author_files import LAYER_FILES
from foveate.profiles.author_gates import read_gates
from foveate.profiles.profile import Profile
from foveate.profiles.tensor_profile import TensorProfile

OFF = 0.01  # the authors' tables, means over samples, differ from their budgets by up to this


def import_profile(model: nn.Module, spec: str, path: str | Path) -> Profile | TensorProfile:
    """Return the profile of a file that a method's authors publish.

    Args:
        model: the model that the file was measured on.
        spec: the method: "prefixkv:budget=20%", whose files are for one budget, "fast_kvzip", or
            one that :func:`foveate.import_head_scores` reads ("sparsemm", "headkv", "mixkv",
            "duo_attention").
        path: a file in the format of that method's authors: for PrefixKV a JSON list with the
            evicted share of the prompt for each layer, for Fast KVzip the gates of the release
            (``q4_dim16_sink16.pt``); :func:`foveate.import_head_scores` lists the others.

    Raises:
        InvalidInput: another method, a missing file, one that does not fit the model, or one for
            another budget.
        UnsupportedModel: a model that cannot be compressed.
    """
    name = name_and_arguments(spec)[0]
    if name in HEAD_FILES:
        return import_head_scores(model, name, path)
    if name == "fast_kvzip":
        return _import_gates(check_model(model), path)
    if name not in LAYER_FILES:
        raise InvalidInput(
            f"no published file format is known for {name!r}. "
            f"{suggest(name, [*HEAD_FILES, *LAYER_FILES, 'fast_kvzip'])}"
        )
    checked, amount, kept = check_model(model), policy(spec).amount, LAYER_FILES[name](path)
    layers = text_config(checked).num_hidden_layers
    if len(kept) != layers:
        raise InvalidInput(
            f"{path} has shares of {len(kept)} layers, and {model_name(checked)} has {layers}."
        )
    share = sum(kept) / len(kept)
    if amount.kind != "fraction" or abs(share - float(amount.value)) > OFF:
        raise InvalidInput(
            f"{path} keeps {share:.1%} of a prompt, and the budget is {amount}. Its name has the "
            "evicted share (0.8 for a budget of 20%): use that budget, or the file of this one."
        )
    shares = [kept[layer] for layer in compressible_layers(text_config(checked))]
    # section 4.1: "10 random samples"; the file does not say
    return profile_of(model, name, shares, samples=10, budget=str(amount))


def _import_gates(model: PreTrainedModel, path: str | Path) -> TensorProfile:
    """Return the gates of the layers that are compressed; files have those, or all layers'."""
    config, gates = text_config(model), read_gates(path)
    compressed = compressible_layers(config)
    if len(gates) == config.num_hidden_layers:
        gates = [gates[layer] for layer in compressed]
    heads, size = gates[0]["of_key"].shape[0], gates[0]["of_key"].shape[2]
    expected = len(compressed), config.num_key_value_heads, config.hidden_size
    if (len(gates), heads, size) != expected:
        raise InvalidInput(
            f"{path} has gates of {len(gates)} layers with {heads} KV heads and hidden states of "
            f"{size}, and {model_name(model)} has {expected[0]} with {expected[1]} and "
            f"{expected[2]}."
        )
    return TensorProfile(
        method="fast_kvzip",
        model=model_name(model),
        layers=len(gates),
        samples=34,  # texts of the release's training; the file does not say
        budget="",
        by_layer=gates,
    )
