"""A cache layer that keeps what its policy keeps, and the attention over it.

The exact form: ``get_seq_length`` is the true number of tokens seen, so rotary positions, masks and
input slicing stay those of the full cache; the attention function gathers the mask's columns through
the original column of each slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import DynamicLayer

from foveate.backends.hf.masks import for_model, over_slots
from foveate.backends.hf.state import CacheState
from foveate.backends.hf.stats import LayerStats, Stopwatch
from foveate.core.compress import Kept, bytes_of_a_token, keep, observed, score
from foveate.core.errors import InvalidInput
from foveate.core.layer import Layer
from foveate.core.policy import Moment
from foveate.core.storage import DensePairs, Pairs
from foveate.ops.ragged_decode import ragged_decode

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]


class FoveateLayer(DynamicLayer):
    """One layer of a cache under a policy. ``place`` counts compressed layers, ``index`` all."""

    is_croppable = True

    def __init__(self, state: CacheState, index: int, place: int):
        self.state, self.index, self.place = state, index, place
        self._empty()
        super().__init__()

    def _empty(self) -> None:
        self.pairs: Pairs | None = None
        self.seen = 0
        self.finished = 0  # the prompt end that was dealt with last
        self.linked = True  # whether the attention function found this layer
        self.late: tuple[Tensor, Tensor] | None = None  # pairs beyond the prompt, same pass
        self.queries: Tensor | None = None  # the last queries seen
        self.running: Mapping[str, Tensor] = {}
        self.watch = Stopwatch()
        self.full_bytes = 0
        self.is_initialized = False

    # What transformers asks of a cache layer

    @property
    def keys(self) -> Tensor | None:
        """Keys of the slots held, padded to the longest head."""
        return None if self.pairs is None else self.pairs.padded().k

    @keys.setter
    def keys(self, value: None) -> None: ...

    @property
    def values(self) -> Tensor | None:
        """Values of the slots held, padded to the longest head."""
        return None if self.pairs is None else self.pairs.padded().v

    @values.setter
    def values(self, value: None) -> None: ...

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Takes the new pairs; the keys returned lead the attention function back here."""
        self.state.link.check()
        self.is_initialized, self.linked = True, False
        k, v = key_states.detach(), value_states.detach()
        end = self.state.prompt_end
        if end is not None and self.armed and self.seen < end < self.seen + k.shape[2]:
            split = end - self.seen
            self.late = (k[:, :, split:], v[:, :, split:])
            k, v = k[:, :, :split], v[:, :, :split]
        self._append(k, v)
        whole = self.late is None and isinstance(self.pairs, DensePairs)
        keys = self.pairs.k if whole else key_states.view_as(key_states)  # type: ignore[union-attr]
        keys._foveate = self  # type: ignore[attr-defined]
        return keys, (self.pairs.v if whole else value_states)  # type: ignore[union-attr]

    def _append(self, k: Tensor, v: Tensor) -> None:
        if self.pairs is None:
            self.pairs = DensePairs(k[:, :, :0], v[:, :, :0])
            self.pairs.reserve(max(k.shape[2], self.state.prompt_end or 0))
        self.pairs.append(k, v)
        self.seen += k.shape[2]

    def get_seq_length(self) -> int:
        """Tokens seen, whatever is kept of them."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks span all columns."""
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        """No limit."""
        return -1

    def get_max_cache_shape(self) -> int:
        """No limit (the name before transformers 5.15)."""
        return -1

    def reset(self) -> None:
        """Back to an empty, armed layer."""
        self._empty()
        if self.place == 0:
            self.state.clear()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes row ``beam_idx[i]``."""
        self._take_rows(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row ``repeats`` times in a row."""
        if self.pairs is not None:
            rows = torch.arange(self.pairs.counts.shape[0]).repeat_interleave(repeats)
            self._take_rows(rows)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these rows."""
        if indices.dtype == torch.bool:
            indices = indices.nonzero()[:, 0]
        self._take_rows(indices)

    def _take_rows(self, rows: Tensor) -> None:
        if self.pairs is None:
            return
        rows = rows.to(self.pairs.counts.device)
        self.pairs.take_rows(rows)
        if self.queries is not None:
            self.queries = self.queries.index_select(0, rows)
        self.running = {name: t.index_select(0, rows) for name, t in self.running.items()}
        if self.place == 0:
            self.state.take_rows(rows)

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the newest tokens; a positive number is the length to cut down to.

        Raises:
            InvalidInput: they reach into the compressed prompt, whose other tokens are gone.
        """
        count = -tokens_to_remove if tokens_to_remove <= 0 else max(0, self.seen - tokens_to_remove)
        if count == 0 or self.pairs is None:
            return
        if self.state.policy.when.decodes:
            raise InvalidInput(
                f"tokens cannot be taken back under {self.state.policy.when!r}: they have already "
                "changed what is kept. Use when=after_prefill with assisted decoding."
            )
        if not self.pairs.crop(count):
            raise InvalidInput(
                f"crop takes back {count} tokens, which reaches into the compressed prompt. "
                "Only tokens that came after the compression can be taken back."
            )
        self.seen -= count

    # Attention

    @property
    def armed(self) -> bool:
        """True while the prompt that will be compressed is being read."""
        return self.state.prompt_end is not None and self.finished < self.state.prompt_end

    def attend(self, base: Attend, query: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor | None]:
        """Attention over what is held; then, at the prompt's end, compression."""
        self.linked = True
        if self.late is None:
            out = self._attend(base, query, mask, scale)
            self._after(query, mask, scale)
            return out
        late, self.late = self.late, None
        split = query.shape[2] - late[0].shape[2]
        cut = None if mask is None else mask[:, :, :split, : self.seen]
        before, _ = self._attend(base, query[:, :, :split], cut, scale)
        self._after(query[:, :, :split], cut, scale)
        self._append(*late)
        rest = None if mask is None else mask[:, :, split:]
        after, _ = self._attend(base, query[:, :, split:], rest, scale)
        return torch.cat([before, after], dim=1), None

    def _attend(self, base: Attend, query: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor | None]:
        pairs, m = self.pairs, query.shape[2]
        if isinstance(pairs, DensePairs) and not pairs.compressed and (mask is not None or m in (1, self.seen)):
            return base(query, pairs.k, pairs.v, mask)
        facts = self.state.facts(mask, (query.shape[0], m, self.seen), query.device)
        if m == 1 and facts.open:
            if isinstance(pairs, DensePairs):
                return base(query, pairs.k, pairs.v, None)
            out = ragged_decode(query, pairs.flat_k, pairs.flat_v, pairs.lengths,  # type: ignore[union-attr]
                                pairs.tail.k, pairs.tail.v, scale)  # type: ignore[union-attr] # fmt: skip
            return out.transpose(1, 2), None
        padded = pairs.padded()  # type: ignore[union-attr]
        visible = over_slots(mask, padded.columns, self._columns_of(query))
        additive = mask.dtype if mask is not None and mask.dtype != torch.bool else None
        groups = query.shape[1] // padded.k.shape[1]
        return base(query, padded.k, padded.v, for_model(visible, groups, additive))

    def _columns_of(self, query: Tensor) -> Int[Tensor, "m"]:
        return torch.arange(self.seen - query.shape[2], self.seen, device=query.device)

    # Compression

    def _after(self, query: Tensor, mask: Tensor | None, scale: float) -> None:
        policy, armed = self.state.policy, self.armed
        if not armed and not policy.when.decodes:
            return
        with self.watch.running(query.device):
            layer = self._layer(query, mask, scale)
            self.running = observed(policy, layer)
            layer = self._with_window(replace(layer, state=self.running))
            self.queries = layer.q[:, :, -max(1, policy.score.queries) :]
            if armed and self.seen < self.state.prompt_end:  # type: ignore[operator]
                return
            self._refuse_empty_rows(layer)
            self._compress(layer, armed)
        if armed:
            self.finished = self.seen

    def _layer(self, query: Tensor, mask: Tensor | None, scale: float) -> Layer:
        """The layer as stages see it, with this pass's queries."""
        m = query.shape[2]
        facts = self.state.facts(mask, (query.shape[0], m, self.seen), query.device)
        padded, pads = self.pairs.padded(), facts.pads  # type: ignore[union-attr]
        columns = self._columns_of(query)
        visible = None if facts.causal else over_slots(mask, padded.columns, columns)
        return Layer(
            q=query.detach(), k=padded.k, v=padded.v, scale=scale, mask=visible,
            pos=torch.where(padded.columns < 0, -1, padded.columns - pads[:, None, None]),
            q_pos=columns - pads[:, None], image=self.state.image_of(padded.columns),
            index=self.place, depth=self.state.depth, state=self._running_now(padded.k.shape[2]),
            earlier=tuple(self.state.notes) if self.place else (),
        )  # fmt: skip

    def _with_window(self, layer: Layer) -> Layer:
        """The layer with queries of earlier passes where this pass is shorter than the window."""
        wanted, m = self.state.policy.score.queries, layer.q.shape[2]
        if self.queries is None or m >= wanted:
            return layer
        if layer.mask is not None:
            raise InvalidInput(
                "the last pass of this prompt is shorter than the observation window and holds "
                "tokens that see later ones (images in a prefix). Pass the prompt in one piece."
            )
        q = torch.cat([self.queries, layer.q], dim=2)[:, :, -wanted:]
        back = torch.arange(1 - q.shape[2], 1, device=q.device)
        return replace(layer, q=q, q_pos=layer.q_pos[:, -1:] + back)

    def _refuse_empty_rows(self, layer: Layer) -> None:
        if self.place == 0 and bool((layer.lengths < 1).any()):
            row = int((layer.lengths < 1).nonzero()[0, 0])
            raise InvalidInput(f"row {row} is nothing but padding.")

    def _running_now(self, slots: int) -> Mapping[str, Tensor]:
        """The running statistics, with zeros for the slots that are new."""
        return {name: torch.nn.functional.pad(t, (0, slots - t.shape[-1]))
                for name, t in self.running.items()}  # fmt: skip

    def _compress(self, layer: Layer, prompt: bool) -> None:
        """Scores the layer and, if the rule says so, keeps what the policy keeps."""
        policy, state = self.state.policy, self.state
        pair_bytes = bytes_of_a_token(layer) * state.depth
        tokens = policy.amount.tokens(layer.lengths, pair_bytes)
        self.full_bytes = layer.k.shape[0] * self.seen * bytes_of_a_token(layer)
        if not policy.when(Moment(prompt, self.pairs.longest, int(tokens.min()))):  # type: ignore[union-attr]
            return
        scored = score(policy, layer, tokens)
        state.notes = [*(state.notes if self.place else []), scored.scores.notes if scored else {}]
        if policy.scope == "model":
            state.wait_for_all(self, scored, pair_bytes)
        elif scored is not None:
            self.hold(keep(policy, [scored], pair_bytes)[0])

    def hold(self, kept: Kept) -> None:
        """Holds the kept pairs instead of all."""
        columns = self.pairs.columns  # type: ignore[union-attr]
        self.pairs = kept.store(columns, first=self.seen)
        self.running = {name: compact(t, kept.mask) for name, t in self.running.items()}

    def stats(self) -> LayerStats:
        """What was kept of the prompt; call it right after the pass that completed it."""
        pairs, pads = self.pairs, self.state.pads
        answered = self.seen - self.finished
        kept = pairs.counts - answered  # type: ignore[union-attr]
        compressed = pairs.compressed  # type: ignore[union-attr]
        return LayerStats(
            layer=self.index, kept=kept if compressed else kept - pads[:, None],  # type: ignore[index]
            seen=self.finished, compressed=compressed, seconds=self.watch.seconds,
            bytes_before=self.full_bytes, bytes_after=pairs.nbytes,  # type: ignore[union-attr]
        )  # fmt: skip


def compact(
    values: Float[Tensor, "b h n"], kept: Bool[Tensor, "b h n"]
) -> Float[Tensor, "b h s"]:
    """The kept slots' values, right-aligned; zeros stand in front."""
    most = int(kept.sum(-1).max())
    order = kept.int().argsort(dim=-1, stable=True)[..., -most:]
    return (values * kept).gather(-1, order)
