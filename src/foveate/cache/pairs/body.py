"""Quantised pairs of many heads, flat, head after head: immutable."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from foveate.ops.affine_codes import decode, encode, extremes, step_of

Along = Literal["token", "channel"]


class CodeLayout(NamedTuple):
    """How numbers become codes of ``bits`` bits: ``group`` of them share a least value and a step.

    Of keys these are of one channel, of tokens that follow each other. ``values`` are by "token":
    of one token, channels that follow each other; or by "channel", as keys are.
    """

    bits: int
    group: int
    values: Along = "token"


class Body(NamedTuple):
    """``f`` pairs in ``G`` groups of keys; groups hold ``sizes`` pairs that follow each other.

    Keys have a least value and a step per group and channel; values per pair and group of channels,
    or where they go by channel, as keys have (``s`` is ``f`` or ``G``).
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
    """The pairs of each head in groups, and one of what is left over."""
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
    """Keys and values, to within half a step each; ``width`` is the channels of a value."""
    owner = owners(body.sizes)
    k = decode(body.k, body.k_least[owner], body.k_step[owner], layout.bits)
    least, step = (_of_numbers(x, owner, width, layout) for x in (body.v_least, body.v_step))
    return k, decode(body.v, least, step, layout.bits)


def _of_numbers(
    scales: Float[Tensor, "s c"], owner: Int[Tensor, "f"], width: int, layout: CodeLayout
) -> Float[Tensor, "f e"]:
    """The least value, or the step, of each of ``width`` numbers of every value."""
    if layout.values == "channel":
        return scales[owner]
    return scales[:, _channels(width, layout, scales.device)]


def _channels(width: int, layout: CodeLayout, device: torch.device) -> Int[Tensor, "e"]:
    """The group of each channel of a value that goes by token."""
    return torch.arange(width, device=device) // layout.group


def joined(first: Body, second: Body) -> Body:
    """Of each head, the pairs of the first, then those of the second."""
    pairs = torch.cat([_heads(first), _heads(second)]).argsort(stable=True)
    groups = torch.cat([_heads_of_groups(first), _heads_of_groups(second)]).argsort(stable=True)
    both = Body(*(torch.cat(parts) for parts in zip(first, second, strict=True)))
    return _picked(both, pairs, groups, both.sizes[groups], first.counts + second.counts)


def some(body: Body, kept: Bool[Tensor, "f"]) -> Body:
    """The pairs where ``kept`` is true, in the groups that they were quantised in."""
    sizes = torch.zeros_like(body.sizes).index_add_(0, owners(body.sizes), kept.to(torch.int32))
    counts = torch.zeros_like(body.counts.flatten()).index_add_(0, _heads(body), kept.long())
    groups = sizes.nonzero()[:, 0]
    pairs = kept.nonzero()[:, 0]
    return _picked(body, pairs, groups, sizes[groups], counts.view_as(body.counts))


def renumbered(body: Body, table: Int[Tensor, "c"]) -> Body:
    """The same pairs, of which column i is column ``table[i]``."""
    return body._replace(columns=_narrow(table[body.columns.long()]))


def of_rows(body: Body, rows: Int[Tensor, "r"]) -> Body:
    """The batch becomes these rows of it, in this order, repeats allowed."""
    h = body.counts.shape[1]
    pairs, groups = (_of_rows(heads // h, rows) for heads in (_heads(body), _heads_of_groups(body)))
    return _picked(body, pairs, groups, body.sizes[groups], body.counts.index_select(0, rows))


def _of_rows(row: Int[Tensor, "m"], rows: Int[Tensor, "r"]) -> Int[Tensor, "s"]:
    """Where the elements of these rows stand, given the row of each element."""
    return torch.cat([(row == one).nonzero()[:, 0] for one in rows])


def _picked(
    body: Body,
    pairs: Int[Tensor, "s"],
    groups: Int[Tensor, "g"],
    sizes: Int[Tensor, "g"],
    counts: Int[Tensor, "b h"],
) -> Body:
    # as many scales of values as pairs: by token; or groups of one pair, and then both are the same
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
    """The group of each pair. Told how many ``pairs`` there are, nothing waits for the device."""
    groups = torch.arange(len(sizes), device=sizes.device)
    return groups.repeat_interleave(sizes.long(), output_size=pairs)


def _heads(body: Body) -> Int[Tensor, "f"]:
    """The (row, head) of each pair, counted through."""
    counts = body.counts.flatten()
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


def _heads_of_groups(body: Body) -> Int[Tensor, "G"]:
    return _heads(body)[body.sizes.cumsum(0) - 1]


def _narrow(columns: Int[Tensor, "f"]) -> Int[Tensor, "f"]:
    """In 16 bits where they fit."""
    fits = not columns.numel() or int(columns.max()) < 2**15
    return columns.to(torch.int16 if fits else torch.int32)
