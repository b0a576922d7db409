"""Measuring a method's profile on a model: several prompts, read and compressed one by one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foveate.backends.hf.attach import Session, compress
from foveate.backends.hf.support import (
    check_model,
    compressible_layers,
    foveate_layers,
    model_name,
    text_config,
)
from foveate.core import head_scores
from foveate.core.composition import policy as policy_of
from foveate.core.errors import InvalidInput
from foveate.core.ledger import Ledger, fingerprint
from foveate.core.policy import Policy
from foveate.core.profile import CALIBRATIONS, Profile, Run, calibrated_method, mean


def calibrate(
    model: nn.Module,
    policy: Policy | str,
    prompts: Iterable[Mapping[str, Any]],
    *,
    progress: Path | None = None,
) -> Profile:
    """The profile of a method on a model: the mean over prompts of what it measures in each.

    Args:
        model: any model that ``compress`` takes.
        policy: of the method that is calibrated ("prefixkv:budget=20%"), alone or in a sum.
        prompts: the inputs of each, as ``generate`` takes them: ``input_ids``, ``pixel_values``...
        progress: a file in which each prompt's numbers are noted at once; if it exists, its prompts
            are not read again. It is deleted at the end.

    Raises:
        InvalidParameter: a method that has nothing to calibrate.
        InvalidInput: no prompt, or one so short that all of it fits the budget.
    """
    policy = policy_of(policy)
    name = calibrated_method(policy)
    how = CALIBRATIONS[name]
    title = model_name(check_model(model))
    ledger = Ledger(progress, {"calibrating": str(policy), "model": title})
    for inputs in prompts:
        if ledger.lacks(fingerprint(inputs)):
            with compress(model, policy) as session:
                session.prefill(**inputs)
                ledger.add(how.read(_run(session)))
    if not ledger.numbers:
        raise InvalidInput("there is no prompt to calibrate on: give at least one.")
    numbers = mean(ledger.numbers)
    profile = Profile(
        method=name,
        model=title,
        layers=len(numbers),
        samples=len(ledger.numbers),
        budget=str(policy.amount) if how.at_a_budget else "",
        by_layer=numbers,
    )
    ledger.close()
    return profile


def import_head_scores(model: nn.Module, method: str, path: str | Path) -> Profile:
    """The profile that a file of head scores makes, as the authors of HeadKV and SparseMM publish.

    Args:
        model: the model that the scores were measured on.
        method: "headkv" or "sparsemm".
        path: a JSON file that maps "layer-head", of query heads, to a list of scores. KV heads get
            the mean of the query heads that share them.

    Raises:
        InvalidInput: another method, no such file, or one that does not fit the model.
    """
    if method not in ("headkv", "sparsemm"):
        raise InvalidInput(f"{method!r} reads no scores of heads: choose 'headkv' or 'sparsemm'.")
    checked = check_model(model)
    config = text_config(checked)
    layers, heads = config.num_hidden_layers, config.num_attention_heads
    scores, samples = head_scores.read(path)
    if scores.shape != (layers, heads):
        raise InvalidInput(
            f"{path} has scores of {scores.shape[0]} layers with {scores.shape[1]} query heads, "
            f"and {model_name(checked)} has {layers} with {heads}."
        )
    compressed = scores[compressible_layers(config)]
    return Profile(
        method=method,
        model=model_name(checked),
        layers=len(compressed),
        samples=samples,
        budget="",
        by_layer=head_scores.of_kv_heads(compressed, config.num_key_value_heads).tolist(),
    )


def _run(session: Session) -> Run:
    layers = foveate_layers(session.cache)
    state = layers[0].state
    if not all(layer.kept is not None for layer in layers):
        raise InvalidInput(
            f"a prompt of {layers[0].seen} tokens fits the budget {session.policy.amount}, so "
            "nothing was measured in it. Give longer prompts or a smaller budget."
        )
    kept = session.stats.kept
    lengths = torch.full((len(kept[0]),), layers[0].finished)
    if state.pads is not None:
        lengths = lengths - state.pads.cpu()
    return Run(kept, lengths, state.notes)
