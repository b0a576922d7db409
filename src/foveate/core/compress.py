"""The verb: a policy applied to layers. Every backend calls this, and so may you."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isnan

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.core.errors import InvalidBudget, InvalidParameter
from foveate.core.layer import Layer, Scored
from foveate.core.policy import Policy
from foveate.core.storage import DensePairs, RaggedPairs, store
from foveate.core.tensors import QKV, layers_of


@dataclass(frozen=True, eq=False)
class Kept:
    """What a policy keeps of one layer.

    ``scores`` are the raw scores, with +inf at protected and -inf at padded slots; None where the
    whole layer fits the budget and nothing was scored.
    """

    mask: Bool[Tensor, "b h n"]
    scores: Float[Tensor, "b h n"] | None
    k: Float[Tensor, "b h n d"]
    v: Float[Tensor, "b h n e"]
    counted: Int[Tensor, "b h"] | None = None  # ``counts``, if they are known

    @cached_property
    def counts(self) -> Int[Tensor, "b h"]:
        """Pairs kept per row and KV head."""
        return self.mask.sum(-1) if self.counted is None else self.counted

    def positions(self, row: int, head: int) -> Int[Tensor, "s"]:
        """Kept positions of one head, ascending, counted in the input as given."""
        return self.mask[row, head].nonzero()[:, 0]

    def keys(self, row: int, head: int) -> Float[Tensor, "s d"]:
        """Kept (and merged) keys of one head."""
        return self.k[row, head, self.mask[row, head]]

    def values(self, row: int, head: int) -> Float[Tensor, "s e"]:
        """Kept (and merged) values of one head."""
        return self.v[row, head, self.mask[row, head]]

    def store(self, columns: Int[Tensor, "b h n"], first: int) -> DensePairs | RaggedPairs:
        """The kept pairs alone, dense or ragged."""
        return store(self.k, self.v, columns, self.mask, first, self.counts)


def compress_tensors(
    policy: Policy,
    layers: Sequence[QKV],
    vision: Bool[Tensor, "b n"] | None = None,
    attention_mask: Tensor | None = None,
    scale: float | None = None,
) -> list[Kept]:
    """What a policy keeps of a prompt, from its tensors alone.

    Args:
        policy: what to keep.
        layers: per layer (q, k, v) of shapes [b, hq, n, d], [b, h, n, d], [b, h, n, e], post-RoPE.
        vision: True at visual tokens.
        attention_mask: 1 (or True) at tokens, 0 at padding, which must stand on the left.
        scale: of the attention logits; 1/sqrt(d) by default.

    Raises:
        InvalidInput: shapes that do not fit together, or padding that is not on the left.
        InvalidBudget: a budget below what is protected.
        MissingModality: the policy needs ``vision``.
    """
    return compress_layers(policy, layers_of(layers, vision, attention_mask, scale))


def compress_layers(policy: Policy, layers: Sequence[Layer]) -> list[Kept]:
    """Scores, budgets, selects and merges, layer by layer or over all, as the scope says."""
    pair_bytes = sum(bytes_of_a_token(layer) for layer in layers)
    notes: list[Mapping[str, Tensor]] = []
    scored: list[Scored | None] = []
    for layer in layers:
        layer = replace(layer, state=observed(policy, layer), earlier=tuple(notes))
        one = score(policy, layer, policy.tokens(layer.lengths, pair_bytes))
        notes.append(one.scores.notes if one else {})
        scored.append(one)
    if policy.scope == "layer":
        return [keep(policy, [one])[0] if one else everything(layer)
                for one, layer in zip(scored, layers, strict=True)]  # fmt: skip
    some = [one for one in scored if one is not None]
    done = iter(keep(policy, some) if some else [])
    return [next(done) if one else everything(layer)
            for one, layer in zip(scored, layers, strict=True)]  # fmt: skip


def observed(policy: Policy, layer: Layer) -> Mapping[str, Tensor]:
    """The layer's running state after its queries have been seen."""
    state = dict(layer.state)
    for each in policy.running:
        state |= each.observe(layer)
    return state


def score(policy: Policy, layer: Layer, tokens: Int[Tensor, "b"]) -> Scored | None:
    """The layer's scores with protected and padded slots marked; None if every row fits.

    Raises:
        InvalidBudget: a row's budget is below what is protected in it.
    """
    available = layer.available
    if layer.once("all fits", lambda: bool((available <= tokens[:, None]).all()),
                  available, tokens):  # fmt: skip
        return None
    marked = policy.select.protect(layer, tokens)
    least, always = layer.once("protected", lambda: _protected(policy, layer, marked, tokens),
                               marked, layer.valid, tokens)  # fmt: skip
    layer = replace(layer, tokens=tokens)
    scores = policy.score(layer)
    raw = scores.values.float()
    values = raw if layer.whole else raw.masked_fill(~layer.valid, -torch.inf)
    if isnan(values.detach().amax()):  # which a NaN anywhere becomes
        raise InvalidParameter(f"the scores of layer {layer.number} contain NaN: {policy}.")
    scores = scores._replace(values=torch.maximum(values, least))
    after = layer.after_scoring(copied=policy.scope == "model")
    return Scored(after, scores, raw, tokens, always)


def _protected(
    policy: Policy, layer: Layer, marked: Bool[Tensor, "b h n"], tokens: Int[Tensor, "b"]
) -> tuple[Float[Tensor, "b h n"], Int[Tensor, "b h"]]:
    """The least that a score counts as, infinite at slots that are kept whatever it is, minus
    infinite elsewhere (a maximum takes half of masked_fill's time); and how many are kept so.
    """
    protected = marked & layer.valid
    counts = protected.sum(-1)
    too_many = (counts > tokens[:, None]) & (layer.available > tokens[:, None])
    if bool(too_many.any()):
        row = int(too_many.any(-1).nonzero()[0, 0])
        raise InvalidBudget(
            f"budget {policy.amount} keeps {int(tokens[row])} of the "
            f"{int(layer.lengths[row])} tokens of row {row}, fewer than the "
            f"{int(counts[row].max())} that are always kept (observation window and "
            f"sinks count inside the budget). Raise the budget or lower the window."
        )
    least = torch.full(protected.shape, -torch.inf, device=protected.device)
    return least.masked_fill_(protected, torch.inf), counts


def keep(policy: Policy, scored: Sequence[Scored]) -> list[Kept]:
    """Budgets, selects and merges layers that have been scored."""
    tokens = scored[0].tokens
    counts = policy.budget(scored, tokens)
    _check_counts(policy, scored, counts, tokens)
    kept = []
    for one, count in zip(scored, counts, strict=True):
        mask = policy.select(one, count)
        _check_mask(policy, one, mask, count)
        k, v = policy.merge(one, mask)
        kept.append(Kept(mask, one.scores.values, k, v, count))
    return kept


def everything(layer: Layer) -> Kept:
    """All real tokens of a layer that fits its budget."""
    return Kept(layer.valid, None, layer.k, layer.v)


def bytes_of_a_token(layer: Layer) -> int:
    """Bytes of one token's keys and values over the layer's KV heads."""
    return bytes_of_pairs(layer.k, layer.v)


def bytes_of_pairs(k: Float[Tensor, "b h n d"], v: Float[Tensor, "b h n e"]) -> int:
    """The same, from the tensors."""
    return k.shape[1] * (k.shape[-1] + v.shape[-1]) * k.element_size()


def _check_mask(
    policy: Policy, one: Scored, mask: Bool[Tensor, "b h n"], count: Int[Tensor, "b h"]
) -> None:
    """Selections keep what they were told to, whoever wrote the select stage."""
    if not torch.equal(mask.sum(-1), count):
        raise InvalidParameter(
            f"{policy.select!r} kept {mask.sum(-1).tolist()} slots instead of {count.tolist()}."
        )
    if not one.layer.whole and bool((mask & ~one.layer.valid).any()):
        raise InvalidParameter(f"{policy.select!r} kept padding.")


def _check_counts(
    policy: Policy,
    scored: Sequence[Scored],
    counts: Sequence[Int[Tensor, "b h"]],
    tokens: Int[Tensor, "b"],
) -> None:
    """Budgets are exact, whoever wrote the budget stage."""
    if policy.planned:
        asked = _total([policy.planned.pairs(one, tokens) for one in scored])
        _check_totals(policy, scored, counts, asked)
        return
    heads = sum(one.layer.k.shape[1] for one in scored)
    if len(scored) > 1:
        _check_totals(policy, scored, counts, tokens * heads)
        return
    one = scored[0]  # as a rule all layers have the same counts
    one.layer.once("exact", lambda: _check_totals(policy, scored, counts, tokens * heads),
                   counts[0], tokens, one.available, one.protected)  # fmt: skip


def _check_totals(
    policy: Policy,
    scored: Sequence[Scored],
    counts: Sequence[Int[Tensor, "b h"]],
    asked: Int[Tensor, "b"],
) -> None:
    held, room, inside = [0] * len(asked), [0] * len(asked), True
    for of_rows, one in zip(counts, scored, strict=True):  # numbers: they are few
        rows = zip(of_rows.tolist(), one.protected.tolist(), one.available.tolist(), strict=True)
        for row, (heads, least, most) in enumerate(rows):
            held[row] += sum(heads)
            room[row] += sum(most)
            limits = zip(least, heads, most, strict=True)
            inside = inside and all(low <= count <= high for low, count, high in limits)
    total = asked.tolist()
    if held != list(map(min, total, room)) or not inside:
        raise InvalidParameter(
            f"{policy.budget!r} allocated {held} pairs of each row where {total} were asked for, "
            "or left a head outside its limits."
        )


def _total(of_layers: Sequence[Int[Tensor, "b"]]) -> Int[Tensor, "b"]:
    return sum(of_layers[1:], of_layers[0])
