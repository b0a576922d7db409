"""Checks for exact serving inside vLLM: models, layers, and several workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foveate.errors import UnsupportedEngine, UnsupportedPolicy
from foveate.policies.policy import Policy
from foveate.policies.protocols import ForeseeableByHead
from foveate.policies.spec import print_value
from foveate.policies.traits import trait, wrapped

DECODER = "decoder"
_STOCK = "Serve this model without a policy."
UNMODELLED = f", which the scores and pages of Foveate's worker do not model. {_STOCK}"
HYBRID = (
    "the layers of this model, or the budget, make KV cache groups of several kinds, and vLLM is "
    "told to make one of them. Start it without --disable-hybrid-kv-cache-manager."
)


def check_layers(
    *,
    compressed: Sequence[str],
    others: Sequence[str],
    sharing: Sequence[str],
    tiers: bool,
    hybrid: bool = True,
) -> None:
    """Refuse models whose layers cannot be compressed, alone or beside each other.

    Args:
        compressed: names of layers with full attention.
        others: names of layers with another kind of cache (windows, states), which stays as it is.
        sharing: names of layers that read another layer's cache.
        tiers: whether a policy gives layers or heads different budgets.
        hybrid: whether vLLM may manage caches of several kinds, or must unify them.

    Raises:
        UnsupportedEngine: no layer to compress; layers that share caches; caches of several kinds
            that vLLM must unify; or different budgets beside other layers, as vLLM would cut all
            groups to the size of the smallest.
    """
    prefix = (
        f"this model has {len(others)} layers with windows or states beside those to compress, and "
    )
    refuse(
        "",
        {
            "no layer of this model holds every token of a prompt, so there is nothing to "
            f"compress. {_STOCK}": not compressed,
            f"the layers {', '.join(sharing)} read the cache of an earlier layer, which would be "
            f"compressed before they have read it. {_STOCK}": sharing,
            f"{prefix}a budget that differs by layer. Use one that keeps the same number in all "
            "layers.": others and tiers,
            HYBRID: (others or tiers) and not hybrid,
        },
    )


def refuse(before: str, refused: Mapping[str, Any], after: str = "") -> None:
    """Raise UnsupportedEngine for the first refused feature with a true value; its description
    stands between ``before`` and ``after``.
    """
    for description, present in refused.items():
        if present:
            raise UnsupportedEngine(f"{before}{description}{after}")


def check_model(config: Any) -> None:
    """Refuse models whose prompts violate the assumptions of policies. ``config`` is a
    ``ModelConfig``.

    Raises:
        UnsupportedEngine: names the model's feature, or the setting.
    """
    refused = {
        "an encoder-decoder model: its answers attend to an encoder, whose cache is none of a "
        "prompt's": config.is_encoder_decoder,
        "a model that returns no tokens (--runner pooling), whose cache is never read": (
            config.runner_type != "generate"
        ),
        "prompts given as embeddings (--enable-prompt-embeds), whose visual tokens are unknown": (
            config.enable_prompt_embeds
        ),
    }
    refuse("Foveate's worker cannot serve ", refused, f". {_STOCK}")


def check_attention(layers: Mapping[str, Any], *, by_head: bool = False) -> None:
    """Refuse layers whose attention depends on more than each pair and the queries.

    Scores are those of a softmax of scaled products, without sinks and soft caps, as they are on
    transformers; attention itself has them. ``layers`` are the vLLM attention layers to compress,
    by name. ``by_head``: a policy splits layers into their KV heads.

    Raises:
        UnsupportedEngine: names the layer, and the extra of its attention.
    """
    for name, layer in layers.items():
        impl = layer.impl
        refused = {
            "a bias that grows with distance (ALiBi)": impl.alibi_slopes is not None,
            f"attention of the kind {impl.attn_type!r}": impl.attn_type != DECODER,
            f"values of another size ({layer.head_size_v}) than keys ({layer.head_size})": (
                layer.head_size_v != layer.head_size
            ),
        }
        refuse(f"the attention of {name} has ", refused, UNMODELLED)
        split = {
            "sinks": getattr(impl, "sinks", None) is not None,
            "a scale for the codes of each head": _scales(layer) > 1,
        }
        why = ", and a budget by KV head attends head by head. Use one that is equal in all heads."
        refuse(f"the attention of {name} has ", {k: v and by_head for k, v in split.items()}, why)


def _scales(layer: Any) -> int:
    """Return the number of scales for the codes of a layer's keys."""
    scale = getattr(layer, "_k_scale", None)
    return 1 if scale is None else int(scale.numel())


def check_parallel(policy: Policy, workers: int, heads: int) -> None:
    """Refuse policies that tensor parallelism cannot serve.

    A worker holds some of a layer's KV heads, and decides for these alone. So every stage must
    choose each KV head's tokens from that head alone, and declare this (``head_by_head``). Stages
    that look across heads would need all workers' numbers in the middle of a layer; they are
    refused, and so are stages that do not declare it.

    Args:
        policy: a policy that passed ``check_policy``.
        workers: number of tensor-parallel workers; with one, everything is allowed.
        heads: KV heads of a layer, over all workers.

    Raises:
        UnsupportedPolicy: a stage that decides for several heads together.
        UnsupportedEngine: fewer KV heads than workers, so that workers would share a head.
    """
    if workers == 1:
        return
    if isinstance(policy.budget, ForeseeableByHead):
        raise UnsupportedPolicy(
            f"{policy} cannot be served with tensor parallelism: {print_value(policy.budget)} "
            "sorts the KV heads of all workers into groups. Use --tensor-parallel-size 1."
        )
    for stage in _across_heads(policy):
        raise UnsupportedPolicy(
            f"{policy} cannot be served with tensor parallelism: {print_value(stage)} compares "
            "several KV heads, but each worker has only some of them. Use "
            "--tensor-parallel-size 1, or a policy that decides head by head, such as "
            "'snapkv:budget=20%' or 'h2o:budget=20%'. A stage of your own declares this with "
            "head_by_head = True."
        )
    if workers > heads:
        raise UnsupportedEngine(
            f"{workers} workers share {heads} KV heads: their query heads would choose different "
            f"tokens of the same head. Use --tensor-parallel-size {heads} at most."
        )


def check_stages(policy: Policy, stages: int) -> None:
    """Refuse policies that pipeline parallelism cannot serve: a worker has some of the layers, and
    a stage that does not declare ``head_by_head`` may read scores of earlier layers.

    Raises:
        UnsupportedPolicy: a stage that does not declare it.
    """
    for stage in _across_heads(policy) if stages > 1 else ():
        raise UnsupportedPolicy(
            f"{policy} cannot be served with pipeline parallelism: {print_value(stage)} may read "
            "earlier layers, and each worker has only some. Use --pipeline-parallel-size 1, "
            "or a policy that decides head by head, such as 'snapkv:budget=20%'."
        )


def _across_heads(policy: Policy) -> Iterator[Any]:
    """Return the stages of a policy that do not declare ``head_by_head``."""
    stages = (*wrapped(policy.score), policy.select, policy.merge)
    return (stage for stage in stages if not trait(stage, "head_by_head"))
