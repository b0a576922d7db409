"""Policies applied to tensors, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.cache.pairs import Form
from foveate.cache.slots import Slots
from foveate.cache.tokens import image_index, spot_index
from foveate.compression.budget_division import divided
from foveate.compression.composition import policy as policy_of
from foveate.compression.composition import refuse_unknown
from foveate.compression.pipeline import Kept, everything
from foveate.compression.reading import PromptReading
from foveate.errors import InvalidInput, UnsupportedPolicy
from foveate.policies.policy import Policy

QKV = tuple[Tensor, Tensor, Tensor]


def layers_of(
    layers: Sequence[QKV],
    vision: Bool[Tensor, "b n"] | None = None,
    attention_mask: Tensor | None = None,
    scale: float | None = None,
    output_weights: Sequence[Tensor] | None = None,
    hidden_states: Sequence[Tensor] | None = None,
) -> list[Layer]:
    """Build the layers of a prompt.

    Args:
        layers: per layer (q, k, v) of shapes [b, hq, n, d], [b, h, n, d], [b, h, n, e], post-RoPE.
        vision: True at visual tokens.
        attention_mask: 1 (or True) at tokens, 0 at padding, which must be on the left.
        scale: of the attention logits; 1/sqrt(d) by default.
        output_weights: per layer [hq, e, hidden], the projection of the heads' outputs; only
            criticalkv needs it.
        hidden_states: per layer [b, n, hidden], the inputs of its attention module; only
            fast_kvzip and star_kv need them.

    Raises:
        InvalidInput: shapes do not fit together, or padding is not on the left.
    """
    if not layers:
        raise InvalidInput("layers is empty: give one (q, k, v) per layer.")
    for index, qkv in enumerate(layers):
        if not isinstance(qkv, Sequence) or len(qkv) != 3:
            raise InvalidInput(
                f"layer {index} is a {type(qkv).__name__}: give (q, k, v) of each layer, shapes "
                "[b, hq, n, d], [b, h, n, d] and [b, h, n, e]."
            )
        q, k, v = qkv
        check_shapes(index, q, k, v)
        if (k.shape[0], k.shape[2]) != (layers[0][1].shape[0], layers[0][1].shape[2]):
            raise InvalidInput(
                f"layer {index}: k has shape {tuple(k.shape)}, that of layer 0 "
                f"{tuple(layers[0][1].shape)}: rows and tokens must be the same."
            )
    check_output_weights(layers, output_weights)
    check_hidden_states(layers, hidden_states)
    b, _, n, _ = layers[0][1].shape
    if vision is not None and (vision.shape != (b, n) or vision.dtype != torch.bool):
        raise InvalidInput(
            f"vision has shape {tuple(vision.shape)} and type {vision.dtype}, expected {(b, n)} "
            f"and torch.bool."
        )
    pads = left_padding(attention_mask, b, n).to(layers[0][1].device)
    if vision is not None:  # padding belongs to no image
        vision = vision & (torch.arange(n, device=vision.device) >= pads[:, None].to(vision.device))
    image = None if vision is None else image_index(vision)
    spot = None if vision is None else spot_index(vision)
    built: list[Layer] = []
    shared: Slots | None = None
    for ordinal, (q, k, v) in enumerate(layers):
        if shared is None or shared.pos.shape != k.shape[:3] or shared.pos.device != k.device:
            shared = slots_of(k, pads, image, spot)
        scale_of_layer = q.shape[-1] ** -0.5 if scale is None else scale
        built.append(
            Layer(
                q=q,
                k=k,
                v=v,
                slots=shared,
                scale=scale_of_layer,
                ordinal=ordinal,
                depth=len(layers),
                output_weight=None if output_weights is None else output_weights[ordinal],
                hidden=None if hidden_states is None else hidden_states[ordinal],
            )
        )
    return built


def slots_of(k: Tensor, pads: Tensor, image: Tensor | None, spot: Tensor | None) -> Slots:
    """Build the slots of a layer with keys ``k`` [b, h, n, d] of all columns.

    All columns are queries. ``image`` and ``spot``, [b, n], are those of the columns; ``pads``,
    [b], count the padding in front.
    """
    pos = torch.arange(k.shape[2], device=k.device) - pads.to(k.device)[:, None]
    image, spot = (None if t is None else t.to(k.device) for t in (image, spot))
    return Slots(
        pos=pos[:, None].expand(k.shape[:3]),
        q_pos=pos,
        image=None if image is None else image[:, None].expand(k.shape[:3]),
        spot=None if spot is None else spot[:, None].expand(k.shape[:3]),
        q_image=image,
    )


def left_padding(
    attention_mask: Tensor | None, b: int, n: int, *, complete: bool = True
) -> Int[Tensor, "b"]:
    """Count the padding columns in front of each row.

    Raises:
        InvalidInput: ``attention_mask`` is not of shape [b, n], or has padding elsewhere than on
            the left, or, if rows are ``complete`` and not only their first columns, a row has no
            token.
    """
    if attention_mask is None:
        return torch.zeros(b, dtype=torch.long, device="cpu")
    if attention_mask.shape != (b, n):
        raise InvalidInput(
            f"attention_mask has shape {tuple(attention_mask.shape)}, expected {(b, n)}."
        )
    valid = attention_mask.bool()
    pads = n - valid.sum(-1)
    rows = torch.arange(n, device=valid.device) >= pads[:, None]
    if not torch.equal(rows, valid):
        raise InvalidInput(
            "padding stands in the middle or on the right of a row. Pad on the left "
            "(tokenizer.padding_side = 'left')."
        )
    if complete and bool((pads == n).any()):
        raise InvalidInput(f"row {int((pads == n).nonzero()[0, 0])} is nothing but padding.")
    return pads


def check_shapes(index: int, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise InvalidInput if q, k and v of a layer do not fit together."""
    fits = (
        q.ndim == k.ndim == v.ndim == 4
        and q.shape[0] == k.shape[0] == v.shape[0]
        and k.shape[1] == v.shape[1]
        and k.shape[1] > 0
        and q.shape[1] % k.shape[1] == 0
        and q.shape[2] == k.shape[2] == v.shape[2] > 0
        and q.shape[3] == k.shape[3]
    )
    if not fits:
        shapes = ", ".join(str(tuple(t.shape)) for t in (q, k, v))
        raise InvalidInput(
            f"layer {index}: q, k, v of shapes {shapes}; expected [b, hq, n, d], [b, h, n, d], "
            f"[b, h, n, e] with hq a multiple of h."
        )


def check_output_weights(layers: Sequence[QKV], weights: Sequence[Tensor] | None) -> None:
    """Raise InvalidInput if output projections do not fit the layers."""
    expected = [(q.shape[1], v.shape[3]) for q, _, v in layers]
    actual = (
        expected if weights is None else [w.shape[:2] if w.ndim == 3 else w.shape for w in weights]
    )
    if list(map(tuple, actual)) != expected:
        raise InvalidInput(
            f"output_weights of shapes {[tuple(s) for s in actual]} for {len(layers)} layers with "
            f"(query heads, value size) {expected}: give one [hq, e, hidden] per layer."
        )


def check_hidden_states(layers: Sequence[QKV], hidden: Sequence[Tensor] | None) -> None:
    """Raise InvalidInput unless there are hidden states [b, n, hidden] of every layer."""
    if hidden is None:
        return
    expected = [(k.shape[0], k.shape[2]) for _, k, _ in layers]
    if [tuple(t.shape[:-1]) for t in hidden] != expected:
        raise InvalidInput(
            f"hidden_states of shapes {[tuple(t.shape) for t in hidden]} for {len(layers)} layers "
            f"with (rows, tokens) {expected}: give one [b, n, hidden] per layer."
        )


def compress_tensors(
    policy: Policy | str,
    layers: Sequence[QKV],
    vision: Bool[Tensor, "b n"] | None = None,
    attention_mask: Tensor | None = None,
    scale: float | None = None,
    output_weights: Sequence[Tensor] | None = None,
    hidden_states: Sequence[Tensor] | None = None,
    *,
    strict: bool = False,
    **unknown: Any,
) -> list[Kept]:
    """Apply a policy to a prompt's tensors, and return what it keeps of each layer.

    Args:
        policy: a policy, or its spec string.
        layers: per layer (q, k, v) of shapes [b, hq, n, d], [b, h, n, d], [b, h, n, e], post-RoPE.
        vision: True at visual tokens.
        attention_mask: 1 (or True) at tokens, 0 at padding, which must be on the left.
        scale: of the attention logits; 1/sqrt(d) by default.
        output_weights: per layer [hq, e, hidden], the projection of the heads' outputs; only
            criticalkv needs it.
        hidden_states: per layer [b, n, hidden], the inputs of its attention module; only
            fast_kvzip and star_kv need them.
        strict: refuse a budget smaller than what is always kept. By default it is raised to that,
            with a warning once per policy.
        **unknown: refused.

    Raises:
        InvalidParameter: an unknown argument, such as ``budget=``, which belongs in the spec.
        InvalidInput: shapes do not fit together, padding is not on the left, the policy needs
            ``output_weights`` or ``hidden_states``, or tensors have NaN or infinity at real tokens.
        InvalidSpec: ``policy`` is neither a policy nor a spec, such as tensors in its place.
        InvalidBudget: with ``strict``, the budget is smaller than what is always kept.
        MissingModality: the policy needs ``vision``.
        UnsupportedPolicy: the policy needs the model.
    """
    known = (
        "policy",
        "layers",
        "vision",
        "attention_mask",
        "scale",
        "output_weights",
        "hidden_states",
        "strict",
    )
    refuse_unknown('compress_tensors("{}", layers)', known, policy, unknown)
    chosen = policy_of(policy)
    if strict:
        chosen.check_strictly()
    built = layers_of(layers, vision, attention_mask, scale, output_weights, hidden_states)
    return compress_layers(chosen, built, strict=strict)


def compress_layers(policy: Policy, layers: Sequence[Layer], *, strict: bool = False) -> list[Kept]:
    """Apply a policy to layers, one by one or all at once, as its scope says.

    Raises:
        UnsupportedPolicy: the policy needs the model.
    """
    if policy.prune is not None:
        raise UnsupportedPolicy(
            f"{policy} drops visual tokens before they are computed, and tensors are what has been "
            "computed. Use foveate.compress(model, ...)."
        )
    if policy.reads_again:
        raise UnsupportedPolicy(
            f"{policy} reads the prompt a second time, which takes the model, not its tensors "
            "alone. Use foveate.compress(model, ...)."
        )
    if policy.reads_indexer:
        raise UnsupportedPolicy(
            f"{policy} reads what the model's indexer chose, which tensors do not tell. Use "
            "foveate.compress(model, ...)."
        )
    forms = [Form.of(layer.q.shape[1], layer.k, layer.v) for layer in layers]
    slots = layers[0].slots
    policy = divided(policy, forms, slots.lengths.tolist(), slots.pos.shape[2])
    reading = PromptReading(policy, len(layers), forms=forms, strict=strict)
    kept_by_layer: dict[int, Kept] = {}
    for layer in layers:
        kept_by_layer |= reading.completed(layer)
    return [kept_by_layer.get(ordinal, everything(layer)) for ordinal, layer in enumerate(layers)]
