"""Quantised pairs of many heads, flat, head after head: immutable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from foveate.ops.affine_codes import decode, encode, extremes, step_of
from foveate.ops.choice import chosen
from foveate.ops.compaction import starts_of
from foveate.ops.quantised_decode import FlatCodes, quantised_decode

Along = Literal["token", "channel", "exact"]


class CodeLayout(NamedTuple):
    """Layout of quantised numbers: codes of ``bits`` bits, a minimum and a step per ``group``.

    A group of keys is one channel of consecutive tokens. A group of ``values`` is either
    consecutive channels of one token ("token"), or like that of keys ("channel"); "exact" values
    are the bytes of the numbers.
    """

    bits: int
    group: int
    values: Along = "token"

    @property
    def decodes_as_codes(self) -> bool:
        """True if decoding reads the codes directly. The reference decodes them first."""
        return self.values == "token" and chosen() != "reference"

    @property
    def codes_values(self) -> bool:
        """True if values are in codes, too."""
        return self.values != "exact"

    def encode(
        self,
        k: Float[Tensor, "f d"],
        v: Float[Tensor, "f e"],
        columns: Int[Tensor, "f"],
        counts: Int[Tensor, "b h"],
    ) -> Body:
        """Quantise the pairs of each head in groups; a head's last group may be smaller."""
        return _quantised(k, v, columns, counts, self)

    def decode(
        self, body: Body, key: int, value: int
    ) -> tuple[Float[Tensor, "f d"], Float[Tensor, "f e"]]:
        """Return keys and values of these sizes, each accurate to half a step."""
        owner = owners(body.sizes)
        k = decode(body.k, body.k_least[owner], body.k_step[owner], self.bits)
        if self.values == "exact":
            return k, body.v.view(body.v_least.dtype)
        least, step = (_of_numbers(x, owner, value, self) for x in (body.v_least, body.v_step))
        return k, decode(body.v, least, step, self.bits)

    def flat(self, body: Body, longest: int) -> FlatCodes:
        """Return what :attr:`attention` takes, ``longest`` being the most pairs of a head.

        Starts of groups and heads are temporary.
        """
        return FlatCodes(
            body.k,
            body.k_least,
            body.k_step,
            owners(body.sizes, len(body.k)),
            body.v,
            body.v_least,
            body.v_step,
            starts_of(body.counts),
            longest,
            self.bits,
            self.group,
        )

    @property
    def attention(self) -> Callable[..., Float[Tensor, "b hq 1 e"]]:
        """Operator of a decoding step."""
        return quantised_decode


class Body(NamedTuple):
    """``f`` pairs whose keys are quantised in ``G`` groups of ``sizes`` consecutive pairs.

    Keys have a minimum and a step per group and channel. Values have these per pair and group of
    channels (``s`` is ``f``), or as keys do if the layout's ``values`` are "channel" (``s`` is
    ``G``). No ``sizes`` at all mean that every pair is a group. Other layouts store what they need
    of a group in place of minima and steps.
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


@runtime_checkable
class PairLayout(Protocol):
    """A way to encode pairs, such as :class:`CodeLayout`, and to attend to them.

    ``bits`` are those of a number; pairs are encoded ``group`` at a time while decoding.
    """

    @property
    def bits(self) -> int: ...

    @property
    def group(self) -> int: ...

    @property
    def decodes_as_codes(self) -> bool: ...

    @property
    def codes_values(self) -> bool: ...

    def encode(
        self,
        k: Float[Tensor, "f d"],
        v: Float[Tensor, "f e"],
        columns: Int[Tensor, "f"],
        counts: Int[Tensor, "b h"],
    ) -> Body: ...

    def decode(
        self, body: Body, key: int, value: int
    ) -> tuple[Float[Tensor, "f d"], Float[Tensor, "f e"]]: ...

    def flat(self, body: Body, longest: int) -> Any: ...

    @property
    def attention(self) -> Callable[..., Float[Tensor, "b hq 1 e"]]: ...


def _quantised(
    k: Float[Tensor, "f d"],
    v: Float[Tensor, "f e"],
    columns: Int[Tensor, "f"],
    counts: Int[Tensor, "b h"],
    layout: CodeLayout,
) -> Body:
    bits = layout.bits
    sizes = _sizes(counts.flatten(), layout.group)
    owner = owners(sizes)
    k_least, k_most = extremes(k, owner, len(sizes))
    k_step = step_of(k_least, k_most, bits)
    return Body(
        encode(k, k_least[owner], k_step[owner], bits),
        k_least,
        k_step,
        sizes.to(torch.int32),
        *_quantised_values(v, owner, len(sizes), layout),
        short_columns(columns),
        counts,
    )


def _quantised_values(
    v: Float[Tensor, "f e"], owner: Int[Tensor, "f"], groups: int, layout: CodeLayout
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the codes of values, their minima and their steps."""
    if layout.values == "exact":
        return as_bytes(v)
    if layout.values == "channel":
        v_least, v_most = extremes(v, owner, groups)
    else:
        channels = _channels(v.shape[1], layout, v.device)
        v_least, v_most = (x.T for x in extremes(v.T, channels, -(-v.shape[1] // layout.group)))
    v_step = step_of(v_least, v_most, layout.bits)
    least, step = (_of_numbers(x, owner, v.shape[1], layout) for x in (v_least, v_step))
    return encode(v, least, step, layout.bits), v_least.contiguous(), v_step.contiguous()


def as_bytes(v: Float[Tensor, "f e"]) -> tuple[UInt8[Tensor, "f u"], Tensor, Tensor]:
    """Return the bytes of values, in place of codes, and no minima or steps."""
    nothing = v.new_empty(len(v), 0)
    return v.contiguous().view(torch.uint8), nothing, nothing


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
    return _picked(both, pairs, groups, _some_sizes(both, groups), first.counts + second.counts)


def selected(body: Body, kept: Bool[Tensor, "f"]) -> Body:
    """Return the pairs where ``kept`` is true, in the groups that they were quantised in."""
    counts = torch.zeros_like(body.counts.flatten()).index_add_(0, _heads(body), kept.long())
    pairs = kept.nonzero()[:, 0]
    groups, sizes = pairs, body.sizes
    if len(sizes):
        sizes = torch.zeros_like(sizes).index_add_(0, owners(sizes), kept.to(torch.int32))
        groups = sizes.nonzero()[:, 0]
        sizes = sizes[groups]
    return _picked(body, pairs, groups, sizes, counts.view_as(body.counts))


def renumbered(body: Body, table: Int[Tensor, "c"]) -> Body:
    """Return the pairs with column i replaced by ``table[i]``."""
    return body._replace(columns=short_columns(table[body.columns.long()]))


def of_rows(body: Body, rows: Int[Tensor, "r"]) -> Body:
    """Select rows of the batch, in this order, repeats allowed."""
    h = body.counts.shape[1]
    pairs, groups = (_of_rows(heads // h, rows) for heads in (_heads(body), _heads_of_groups(body)))
    counts = body.counts.index_select(0, rows)
    return _picked(body, pairs, groups, _some_sizes(body, groups), counts)


def _of_rows(row: Int[Tensor, "m"], rows: Int[Tensor, "r"]) -> Int[Tensor, "s"]:
    """Return the indices of the elements of ``rows``, given each element's row."""
    return torch.cat([(row == index).nonzero()[:, 0] for index in rows])


def _picked(
    body: Body,
    pairs: Int[Tensor, "s"],
    groups: Int[Tensor, "g"],
    sizes: Int[Tensor, "z"],
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
    heads = _heads(body)
    return heads[body.sizes.cumsum(0) - 1] if len(body.sizes) else heads


def _some_sizes(body: Body, groups: Int[Tensor, "g"]) -> Int[Tensor, "z"]:
    return body.sizes[groups] if len(body.sizes) else body.sizes


def short_columns(columns: Int[Tensor, "f"]) -> Int[Tensor, "f"]:
    """Return columns as int16 if they fit, else as int32."""
    fits = not columns.numel() or int(columns.max()) < 2**15
    return columns.to(torch.int16 if fits else torch.int32)
