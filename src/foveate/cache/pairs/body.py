"""Quantised pairs of many heads, flat, head after head: immutable."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from foveate.ops.affine_codes import decode, encode, extremes, step_of

Along = Literal["token", "channel"]


class CodeLayout(NamedTuple):
    """Layout of quantised numbers: codes of ``bits`` bits, a minimum and a step per ``group``.

    A group of keys is one channel of consecutive tokens. A group of ``values`` is either
    consecutive channels of one token ("token"), or like that of keys ("channel").
    """

    bits: int
    group: int
    values: Along = "token"


class Body(NamedTuple):
    """``f`` pairs whose keys are quantised in ``G`` groups of ``sizes`` consecutive pairs.

    Keys have a minimum and a step per group and channel. Values have these per pair and group of
    channels (``s`` is ``f``), or as keys do if the layout's ``values`` are "channel" (``s`` is
    ``G``).
    """

    k: UInt8[Tensor, "f w"]
    k_least: Float[Tensor, "G d"]
    k_step: Float[Tensor, "G d"]
    sizes: Int[Tensor, "G"]
    v: UInt8[Tensor, "f u"]
    v_least: Float[Tensor, "s c"]
    v_step: Float[Tensor, "s c"]
    columns: Int[Tensor, "f"]
    counts: Int[Tensor, "b h"]


def quantised(
    k: Float[Tensor, "f d"],
    v: Float[Tensor, "f e"],
    columns: Int[Tensor, "f"],
    counts: Int[Tensor, "b h"],
    layout: CodeLayout,
) -> Body:
    """Quantise the pairs of each head in groups; a head's last group may be smaller."""
    bits = layout.bits
    sizes = _sizes(counts.flatten(), layout.group)
    owner = owners(sizes)
    k_least, k_most = extremes(k, owner, len(sizes))
    k_step = step_of(k_least, k_most, bits)
    if layout.values == "channel":
        v_least, v_most = extremes(v, owner, len(sizes))
    else:
        channels = _channels(v.shape[1], layout, v.device)
        v_least, v_most = (x.T for x in extremes(v.T, channels, -(-v.shape[1] // layout.group)))
    v_step = step_of(v_least, v_most, bits)
    least, step = (_of_numbers(x, owner, v.shape[1], layout) for x in (v_least, v_step))
    return Body(
        encode(k, k_least[owner], k_step[owner], bits),
        k_least,
        k_step,
        sizes.to(torch.int32),
        encode(v, least, step, bits),
        v_least.contiguous(),
        v_step.contiguous(),
        _narrow(columns),
        counts,
    )


def restored(
    body: Body, layout: CodeLayout, width: int
) -> tuple[Float[Tensor, "f d"], Float[Tensor, "f e"]]:
    """Return keys and values, each accurate to half a step; ``width`` is a value's channels."""
    owner = owners(body.sizes)
    k = decode(body.k, body.k_least[owner], body.k_step[owner], layout.bits)
    least, step = (_of_numbers(x, owner, width, layout) for x in (body.v_least, body.v_step))
    return k, decode(body.v, least, step, layout.bits)


def _of_numbers(
    scales: Float[Tensor, "s c"], owner: Int[Tensor, "f"], width: int, layout: CodeLayout
) -> Float[Tensor, "f e"]:
    """Expand minima or steps of values to each of their ``width`` channels."""
    if layout.values == "channel":
        return scales[owner]
    return scales[:, _channels(width, layout, scales.device)]


def _channels(width: int, layout: CodeLayout, device: torch.device) -> Int[Tensor, "e"]:
    """Return the group of each channel of a value quantised by token."""
    return torch.arange(width, device=device) // layout.group


def joined(first: Body, second: Body) -> Body:
    """Concatenate two bodies per head: the first's pairs, then the second's."""
    pairs = torch.cat([_heads(first), _heads(second)]).argsort(stable=True)
    groups = torch.cat([_heads_of_groups(first), _heads_of_groups(second)]).argsort(stable=True)
    both = Body(*(torch.cat(parts) for parts in zip(first, second, strict=True)))
    return _picked(both, pairs, groups, both.sizes[groups], first.counts + second.counts)


def selected(body: Body, kept: Bool[Tensor, "f"]) -> Body:
    """Return the pairs where ``kept`` is true, in the groups that they were quantised in."""
    sizes = torch.zeros_like(body.sizes).index_add_(0, owners(body.sizes), kept.to(torch.int32))
    counts = torch.zeros_like(body.counts.flatten()).index_add_(0, _heads(body), kept.long())
    groups = sizes.nonzero()[:, 0]
    pairs = kept.nonzero()[:, 0]
    return _picked(body, pairs, groups, sizes[groups], counts.view_as(body.counts))


def renumbered(body: Body, table: Int[Tensor, "c"]) -> Body:
    """Return the pairs with column i replaced by ``table[i]``."""
    return body._replace(columns=_narrow(table[body.columns.long()]))


def of_rows(body: Body, rows: Int[Tensor, "r"]) -> Body:
    """Select rows of the batch, in this order, repeats allowed."""
    h = body.counts.shape[1]
    pairs, groups = (_of_rows(heads // h, rows) for heads in (_heads(body), _heads_of_groups(body)))
    return _picked(body, pairs, groups, body.sizes[groups], body.counts.index_select(0, rows))


def _of_rows(row: Int[Tensor, "m"], rows: Int[Tensor, "r"]) -> Int[Tensor, "s"]:
    """Return the indices of the elements of ``rows``, given each element's row."""
    return torch.cat([(row == index).nonzero()[:, 0] for index in rows])


def _picked(
    body: Body,
    pairs: Int[Tensor, "s"],
    groups: Int[Tensor, "g"],
    sizes: Int[Tensor, "g"],
    counts: Int[Tensor, "b h"],
) -> Body:
    # Values by token have a scale per pair. Groups of one pair have as many, and then pairs and
    # groups are equal.
    scales = pairs if len(body.v_least) == len(body.v) else groups
    return Body(
        body.k[pairs],
        body.k_least[groups],
        body.k_step[groups],
        sizes,
        body.v[pairs],
        body.v_least[scales],
        body.v_step[scales],
        body.columns[pairs],
        counts,
    )


def _sizes(counts: Int[Tensor, "m"], group: int) -> Int[Tensor, "G"]:
    groups = -(-counts // group)
    last = groups.cumsum(0)[groups > 0] - 1
    sizes = counts.new_full((int(groups.sum()),), group)
    sizes[last] = ((counts - 1) % group + 1)[groups > 0]
    return sizes


def owners(sizes: Int[Tensor, "G"], pairs: int | None = None) -> Int[Tensor, "f"]:
    """Return the group of each pair. With the number of ``pairs``, no device sync is needed."""
    groups = torch.arange(len(sizes), device=sizes.device)
    return groups.repeat_interleave(sizes.long(), output_size=pairs)


def _heads(body: Body) -> Int[Tensor, "f"]:
    """Return the head of each pair, as a flat index of (row, head)."""
    counts = body.counts.flatten()
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


def _heads_of_groups(body: Body) -> Int[Tensor, "G"]:
    return _heads(body)[body.sizes.cumsum(0) - 1]


def _narrow(columns: Int[Tensor, "f"]) -> Int[Tensor, "f"]:
    """Return columns as int16 if they fit, else as int32."""
    fits = not columns.numel() or int(columns.max()) < 2**15
    return columns.to(torch.int16 if fits else torch.int32)
