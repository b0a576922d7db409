"""Profiles from the files that the authors of methods publish."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from foveate.compression.composition import name_and_arguments, policy
from foveate.errors import InvalidInput, suggest
from foveate.hf.layer.support import check_model, compressible_layers, model_name, text_config
from foveate.hf.measuring.calibrate import profile_of
from foveate.hf.measuring.heads import import_head_scores
from foveate.policies.heads import HEAD_FILES
from foveate.profiles.author_files import LAYER_FILES
from foveate.profiles.profile import Profile

OFF = 0.01  # the authors' tables, means over samples, differ from their budgets by up to this


def import_profile(model: nn.Module, spec: str, path: str | Path) -> Profile:
    """Return the profile of a file that a method's authors publish.

    Args:
        model: the model that the file was measured on.
        spec: the method: "prefixkv:budget=20%", whose files are for one budget, or one that
            :func:`foveate.import_head_scores` reads ("sparsemm", "headkv", "mixkv",
            "duo_attention").
        path: a file in the format of that method's authors: for PrefixKV a JSON list with the
            evicted share of the prompt for each layer; :func:`foveate.import_head_scores` lists the
            others.

    Raises:
        InvalidInput: another method, a missing file, one that does not fit the model, or one for
            another budget.
        UnsupportedModel: a model that cannot be compressed.
    """
    name = name_and_arguments(spec)[0]
    if name in HEAD_FILES:
        return import_head_scores(model, name, path)
    if name not in LAYER_FILES:
        raise InvalidInput(
            f"no published file format is known for {name!r}. "
            f"{suggest(name, [*HEAD_FILES, *LAYER_FILES])}"
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
