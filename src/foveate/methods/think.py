"""ThinK: keys without the channels that change the attention least.

Tokens are kept by another score, SnapKV's by default (``h2o+think``). Of the kept keys, all but
those of the last ``window`` tokens lose ``prune`` of their channels for good: those with the lowest
|Q_i| |K_i|, over the window's queries and the kept keys, head by head. Only the other channels are
stored, so bytes go down by ``prune`` / 2 beyond the budget, which counts tokens. Decoding widens a
layer's keys again, temporarily.

Differences from the authors' code: a prompt that fits its budget keeps all channels; and there is
one set of channels per KV head, by the mean over its query heads, where the release first repeats
keys for all query heads. Difference from kvpress: the window's keys keep all channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from foveate.cache.layer import Layer, Scored, Scores
from foveate.cache.pairs import DensePairs, NarrowPairs, Pairs, RaggedPairs, exact, exact_bytes
from foveate.errors import InvalidParameter
from foveate.policies.method import Amount, Policy, method, stage
from foveate.policies.parameters import Count, Kernel, Positive, ShareBelow, Window
from foveate.policies.protocols import Held, Score
from foveate.stages import Pool, Reduction, TopK, Uniform, WindowAttention
from foveate.stages.recent import is_recent, most_recent, part
from foveate.stages.score.window import window_of


@stage("query_energy", head_by_head=True)
class QueryEnergy:
    """Another score, with a note "query_energy", [b h d]: the mean square of each query channel.

    The mean is over the last ``window`` queries and the query heads of a KV head, in float32.

    Source: ThinK (arXiv:2407.21018), and its release.
    """

    of: Score
    window: Window = 32

    def queries(self, tokens: int) -> int:
        return max(most_recent(self.window, tokens), self.of.queries(tokens))

    def __call__(self, layer: Layer) -> Scores:
        inner = self.of(layer)
        real = window_of(layer.slots, self.window)
        q = layer.q[:, :, -real.shape[1] :].float().masked_fill(~real[:, None, :, None], 0.0)
        energy = q.square().sum(2) / real.sum(-1)[:, None, None]
        b, hq, d = energy.shape
        by_head = energy.view(b, hq // layer.groups, layer.groups, d).mean(2)
        return inner._replace(notes={**inner.notes, "query_energy": by_head})


@stage(
    "drop_channels",
    head_by_head=True,
    instead_for_latents="channels of a latent are no channels of a key. Use kivi for fewer bytes.",
)
class DropChannels:
    """Merge that zeroes ``share`` of the channels of each head's keys (rounded down).

    The channels with the lowest note "query_energy" times the keys' mean square are zeroed, of
    equal ones the earlier, except in the last ``recent`` tokens. Values stay.
    ``store=zero_channels`` then does not store these channels.

    Source: ThinK (arXiv:2407.21018), and its release.
    """

    share: ShareBelow = 0.4
    recent: Count = 32

    def zeroed(self, channels: int) -> int:
        """Return how many of ``channels`` channels are zero before the last ``recent`` tokens."""
        return int(part(torch.tensor([channels], dtype=torch.long, device="cpu"), self.share))

    def __call__(
        self, scored: Scored, kept: Bool[Tensor, "b h n"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n e"]]:
        layer, notes = scored.layer, scored.scores.notes
        if "query_energy" not in notes:
            raise InvalidParameter(
                f"{self!r} needs a score with a note 'query_energy'. Use "
                "score=query_energy(of=...)."
            )
        keys = layer.k.float().masked_fill(~kept[..., None], 0.0)
        worth = notes["query_energy"] * keys.square().sum(2)
        lowest = worth.argsort(dim=-1, stable=True)[..., : self.zeroed(worth.shape[-1])]
        dropped = torch.zeros_like(worth, dtype=torch.bool).scatter(-1, lowest, value=True)
        early = ~is_recent(layer.slots, self.recent)
        return layer.k.masked_fill(dropped[:, :, None] & early[..., None], 0.0), layer.v


@stage("zero_channels")
class ZeroChannels:
    """Lossless store of keys without the channels that are zero in a head's older pairs.

    The last ``residual`` pairs, and later ones, have all channels.

    Source: ThinK (arXiv:2407.21018), and its release.
    """

    residual: Count = 32
    exact: bool = field(default=True, init=False)

    def __call__(self, pairs: Pairs) -> Pairs:
        return NarrowPairs.of(pairs.opened(), self.residual)

    def bytes_of(self, stored: Held) -> int:
        """Return the bytes if ``stored.zeroed`` channels are zero; if more are, it takes less."""
        form, tail = stored.form, stored.counts.clamp_max(self.residual)
        early, left = stored.counts - tail, form.key - stored.zeroed
        if not stored.zeroed or not bool(early.any()):
            return exact_bytes(stored.counts, form.pair, stored.spare)
        narrow = (left + form.value) * form.dtype.itemsize
        channels = stored.counts.numel() * left * torch.int16.itemsize
        rest = exact_bytes(tail, form.pair, stored.spare)
        return exact_bytes(early, narrow) + channels + rest

    def restored(self, tensors: Mapping[str, Tensor], first: int) -> NarrowPairs:
        """Return the pairs whose tensors were read from a file."""
        rest = exact(tensors, first)
        counts = tensors["thin.counts"]
        k, v, columns = (tensors[f"thin.{name}"] for name in ("k", "v", "columns"))
        if bool((counts == counts[0, 0]).all()):
            shape = (*counts.shape, int(counts[0, 0]))
            k, v, columns = (t.view(*shape, *t.shape[1:]) for t in (k, v, columns))
            body: DensePairs | RaggedPairs = DensePairs(k, v, columns, rest.first)
        else:
            body = RaggedPairs(k, v, columns, counts, rest.first)
        return NarrowPairs(body, tensors["thin.channels"], rest)


@method("xu2025think", adds=("score", "merge", "store"), wraps=True)
def think(
    *,
    budget: Amount,
    prune: ShareBelow = 0.4,
    window: Positive = 32,
    kernel: Kernel = 7,
    pool: Pool = "max",
    group: Reduction = "mean",
) -> Policy:
    """Tokens that the last queries attend to, with only the important channels of older keys.

    Channels with the lowest |Q_i| |K_i| are dropped.

    Args:
        prune: Share of the channels that older keys lose.

    Defaults:
        release: SnapKV with its LongBench settings, and 0.4 of the channels
    """
    attention = WindowAttention(window=window, kernel=kernel, pool=pool, group=group)
    return Policy(
        score=QueryEnergy(of=attention, window=window),
        budget=Uniform(amount=budget),
        select=TopK(recent=window),
        merge=DropChannels(share=prune, recent=window),
        store=ZeroChannels(residual=window),
    )
