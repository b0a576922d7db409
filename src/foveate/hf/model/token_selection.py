"""Selection of token positions in the inputs of a decoder and of its layers."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from foveate.errors import UnsupportedModel
from foveate.hf.model.internals import CACHE_NAMES

DEEPSTACK = "_deepstack_process"
"""Method of decoders with DeepStack, which adds the tower's features to the hidden states after a
layer.
"""

_MASK, _POSITIONS, _COUNTER = "attention_mask", "position_ids", "cache_position"
_READ = ("inputs_embeds", "input_ids")
_WHERE, _FEATURES = "visual_pos_masks", "deepstack_visual_embeds"

Known = dict[int, tuple[Tensor, Tensor, Tensor]]
"""Tensors cut in this pass, by identity of the uncut one: uncut tensor, positions, cut tensor."""


def given_mask(kwargs: Mapping[str, Any]) -> Any:
    """Return the decoder's mask for its layers of full attention, from its arguments."""
    mask = kwargs.get(_MASK)
    return mask.get("full_attention") if isinstance(mask, dict) else mask


def without_padding(mask: Any) -> bool:
    """Return True for a mask over tokens [b, n] without padding."""
    return isinstance(mask, Tensor) and mask.ndim == 2 and bool((mask != 0).all())


def states_at(hidden: Float[Tensor, "b n c"], index: Int[Tensor, "b m"]) -> Float[Tensor, "b m c"]:
    """Select the hidden states at these positions of each row."""
    return hidden.gather(1, index[..., None].expand(-1, -1, hidden.shape[2]))


def embedded(decoder: nn.Module, kwargs: Mapping[str, Any]) -> Float[Tensor, "b t c"]:
    """Return the embeddings of the decoder's inputs."""
    embeddings = kwargs.get("inputs_embeds")
    if embeddings is None:
        embeddings = decoder.get_input_embeddings()(kwargs["input_ids"])  # type: ignore[operator]
    return embeddings  # type: ignore[no-any-return]


def at_door(
    kwargs: Mapping[str, Any],
    hidden: Float[Tensor, "b s c"],
    order: Int[Tensor, "b s"],
    columns: Int[Tensor, "b s"],
    first: int,
) -> dict[str, Any]:
    """Select the decoder's inputs at the positions in ``order``, which have these ``columns``;
    ``first`` columns precede the pass.

    Raises:
        UnsupportedModel: an input without one entry for every token.
    """
    count = next(kwargs[name].shape[1] for name in _READ if kwargs.get(name) is not None)
    cut = at_places(kwargs, hidden, order, columns)
    return {**cut, _MASK: _placeholder_mask(kwargs.get(_MASK), order, first + count)}


def at_places(
    kwargs: Mapping[str, Any],
    hidden: Float[Tensor, "b s c"],
    order: Int[Tensor, "b s"],
    columns: Int[Tensor, "b s"],
) -> dict[str, Any]:
    """Select the decoder's inputs like :func:`at_door`, without the mask. ``position_ids`` are
    always added, or the decoder would count the selected tokens instead.
    """
    count = next(kwargs[name].shape[1] for name in _READ if kwargs.get(name) is not None)
    cut: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name in (*_READ, _COUNTER, _MASK, _FEATURES, _WHERE):
            continue
        is_per_token = isinstance(value, Tensor) and name not in CACHE_NAMES
        cut[name] = _piece(name, value, order, count) if is_per_token else _plain(name, value)
    cut["inputs_embeds"] = hidden
    if cut.get(_POSITIONS) is None:
        cut[_POSITIONS] = columns.clamp_min(0)
    if (where := kwargs.get(_WHERE)) is not None:
        features = kwargs.get(_FEATURES)
        cut_features = [features_of(where, layer, order, columns) for layer in features or ()]
        cut[_WHERE] = where.gather(1, order) & (columns >= 0)
        cut[_FEATURES] = [layer for _, layer in cut_features] if features is not None else None
    return cut


def _placeholder_mask(mask: Any, order: Int[Tensor, "b s"], columns: int) -> Any:
    """Return a mask that models pass on unchanged and that takes no memory. The real mask is
    applied in the attention.
    """
    placeholder = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=order.device)
    placeholder = placeholder.expand(order.shape[0], 1, order.shape[1], columns)
    return dict.fromkeys(mask, placeholder) if isinstance(mask, dict) else placeholder


def _plain(name: str, value: Any) -> Any:
    """Return a value that is not a tensor; raise if tensors are inside."""
    entries = value if isinstance(value, (list, tuple)) else ()
    if any(isinstance(entry, Tensor) for entry in entries):
        raise _refused(name)
    return value


def _piece(name: str, value: Tensor, order: Int[Tensor, "b s"], count: int) -> Tensor:
    if name == _POSITIONS and value.shape[-1] == count:
        return _along(value, order, value.ndim - 1)
    if value.ndim > 1 and value.shape[1] == count and value.shape[0] in (1, order.shape[0]):
        return _along(value, order, 1)
    raise _refused(name)


def _refused(name: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"this model's decoder takes {name} with its prompt, which does not have one entry for "
        "every token, so tokens cannot be dropped from it. Leave the prune stage out of the policy."
    )


def _along(value: Tensor, order: Int[Tensor, "b s"], axis: int) -> Tensor:
    """Select the positions in ``order`` along an axis; the axis before it has the rows."""
    shape = list(value.shape)
    if axis:
        shape[axis - 1] = order.shape[0]
    value = value.expand(shape)
    index = order if axis else order[0]
    before, after = (1,) * max(0, axis - 1), (1,) * (value.ndim - axis - 1)
    shape[axis] = order.shape[1]
    return value.gather(axis, index.view(*before, *index.shape, *after).expand(shape))


def named_states(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Tensor, dict[str, Any]]:
    """Return the hidden states that a layer is called with, and its other arguments by name."""
    names = list(inspect.signature(module.forward).parameters)
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    return named.pop(names[0]), named


def of_layer(
    arguments: Mapping[str, Any], order: Int[Tensor, "b s"], known: Known
) -> dict[str, Any]:
    """Select a layer's arguments other than its hidden states at the positions in ``order``. Masks
    stay uncut: they are over the tokens that the decoder reads. ``known`` caches the selections of
    this pass.

    Raises:
        UnsupportedModel: an argument without one entry for every token.
    """
    embeddings = arguments.get("position_embeddings")
    tensors = embeddings if isinstance(embeddings, (tuple, list)) else [embeddings]
    count = next((tensor.shape[-2] for tensor in tensors if isinstance(tensor, Tensor)), None)
    return {
        name: value if name in (_MASK, *CACHE_NAMES) else _cut(name, value, order, count, known)
        for name, value in arguments.items()
    }


def _cut(
    name: str,
    value: Any,
    order: Int[Tensor, "b s"],
    count: int | None,
    known: Known,
) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_cut(name, entry, order, count, known) for entry in value)
    if not isinstance(value, Tensor) or count is None or name == _COUNTER:
        return value
    if (before := known.get(id(value))) is not None and before[0] is value and before[1] is order:
        return before[2]
    cut = value
    if name == "position_embeddings":
        cut = _along(value, order.to(value.device), value.ndim - 2)
    elif count in value.shape:
        cut = _piece(name, value, order.to(value.device), count)
    known[id(value)] = value, order, cut
    return cut


def features_of(
    where: Bool[Tensor, "b t"],
    features: Float[Tensor, "v c"],
    order: Int[Tensor, "b s"],
    columns: Int[Tensor, "b s"],
) -> tuple[Bool[Tensor, "b s"], Float[Tensor, "w c"]]:
    """Select DeepStack's features of the visual tokens at the positions in ``order``, and mark
    these positions. ``where``: visual tokens before the selection.
    """
    number = where.flatten().long().cumsum(0).view_as(where) - 1
    left = where.gather(1, order) & (columns >= 0)
    return left, features[number.gather(1, order)[left]]
