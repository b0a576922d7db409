"""Policies for models whose cache stores latents (MLA), which all heads of a layer share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transformers import PreTrainedModel

from foveate.errors import UnsupportedPolicy
from foveate.hf.layer.indexed_layer import indexers, leaders
from foveate.hf.layer.projection import with_latents
from foveate.hf.layer.support import compressible_layers, text_config
from foveate.policies.policy import Policy
from foveate.policies.protocols import StoresLatents
from foveate.policies.traits import trait, wrapped


def for_latents(policy: Policy, model: PreTrainedModel) -> Policy:
    """Return the policy with a store that keeps rotary keys exact, if the model's cache stores
    latents; else unchanged.

    Raises:
        UnsupportedPolicy: a stage means nothing where all heads of a layer share one kept set, or
            a store would change rotary keys; or a score needs an indexer, and the model has none.
    """
    expanding = with_latents(model)
    if policy.reads_indexer and not indexers(expanding):
        raise UnsupportedPolicy(
            f"{policy.score!r} counts what the model's indexer chose, and {type(model).__name__} "
            "has none. Leave score=indexer out."
        )
    if not expanding:
        return policy
    if leaders(config := text_config(model), compressible_layers(config)):
        _check_groups(model, policy)
    for stage in _stages(policy):
        if why := trait(stage, "instead_for_latents"):
            raise _refused(model, stage, why)
    if policy.store.exact:
        return policy
    if not isinstance(policy.store, StoresLatents):
        why = "it would round their rotary keys. Use kivi(bits=4), which keeps those exact."
        raise _refused(model, policy.store, why)
    store = policy.store.of_latents()
    return policy if store == policy.store else policy.but(store=store)


def _check_groups(model: PreTrainedModel, policy: Policy) -> None:
    """Refuse budgets that differ between layers which have to keep one set."""
    if policy.planned or policy.amount.kind == "bytes":
        raise UnsupportedPolicy(
            f"some layers of {type(model).__name__} attend to what the indexer of another layer "
            f"chose, so they keep one set, and {policy.budget!r} gives them different budgets. Use "
            "a budget that is a share or a number of tokens in every layer, e.g. snapkv:budget=20%."
        )


def _stages(policy: Policy) -> Iterator[Any]:
    yield from wrapped(policy.score)
    yield policy.budget
    yield policy.select
    yield policy.merge


def _refused(model: PreTrainedModel, stage: object, why: str) -> UnsupportedPolicy:
    return UnsupportedPolicy(
        f"{type(model).__name__} caches latents that all heads of a layer share (MLA), for which "
        f"{stage!r} means nothing: {why}"
    )
