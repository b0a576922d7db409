"""A cache layer that keeps what its policy keeps, and the attention over it.

The exact form: ``get_seq_length`` is the true number of tokens seen, so rotary positions, masks and
input slicing stay those of the full cache; the attention function gathers the mask's columns
through the original column of each slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from foveate.backends.hf.attend import Attend, Output, over_pairs
from foveate.backends.hf.gradients import refused
from foveate.backends.hf.internals import DynamicLayer
from foveate.backends.hf.passes import after_pass
from foveate.backends.hf.state import CacheState
from foveate.backends.hf.stats import LayerStats, Stopwatch
from foveate.backends.hf.windowed import LastQueries
from foveate.core.compress import Kept
from foveate.core.errors import InvalidInput, NothingCompressed, UnsupportedCache
from foveate.core.pairs import Padded, Pairs
from foveate.core.protocols import NoMerge
from foveate.core.storage import DensePairs

LINK = "_foveate"
"""The attribute by which the keys that a layer returns lead back to it."""


class FoveateLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """One layer of a cache under a policy. ``place`` counts compressed layers, ``index`` all."""

    is_croppable = True

    def __init__(self, state: CacheState, index: int, place: int):
        self.state, self.index, self.place = state, index, place
        self._empty()
        super().__init__()  # type: ignore[no-untyped-call]

    def _empty(self) -> None:
        self._pairs: Pairs | None = None
        self.seen = 0
        self.finished = 0  # the prompt end that was dealt with last
        self.linked = True  # whether the attention function found this layer
        self.late: tuple[Tensor, Tensor] | None = None  # pairs beyond the prompt, same pass
        self.queries: Tensor | None = None  # the last queries seen
        self.running: Mapping[str, Tensor] = {}
        self.sums: Tensor | None = None  # column sums of the latest pass, for its scores
        self.window: LastQueries | None = None  # its last queries, until their attention is made
        self.kept: Tensor | None = None  # pairs kept [b, h] when it was compressed last
        self.watch = Stopwatch()
        self.full_bytes = 0
        self.is_initialized = False

    @property
    def pairs(self) -> Pairs:
        """The pairs held; there are none before the first pass."""
        if self._pairs is None:
            raise NothingCompressed(f"layer {self.index} of this cache has seen no token yet.")
        return self._pairs

    @property
    def armed(self) -> bool:
        """True while the prompt that will be compressed is being read."""
        return self.state.prompt_end is not None and self.finished < self.state.prompt_end

    # What transformers asks of a cache layer

    @property
    def keys(self) -> Tensor | None:
        """Keys of the slots held, padded to the longest head."""
        return None if self._pairs is None else self._pairs.padded().k

    @keys.setter
    def keys(self, value: Tensor | None) -> None: ...

    @property
    def values(self) -> Tensor | None:
        """Values of the slots held, padded to the longest head."""
        return None if self._pairs is None else self._pairs.padded().v

    @values.setter
    def values(self, value: Tensor | None) -> None: ...

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Takes the new pairs; the keys returned lead the attention function back here."""
        self.state.link.check()
        self.is_initialized, self.linked = True, False
        k, v = key_states, value_states
        if self._pairs is not None and not _whole(self._pairs):
            k, v = k.detach(), v.detach()
        end = self.state.prompt_end
        if end is not None and self.armed and self.seen < end < self.seen + k.shape[2]:
            self._refuse_early_drafts()
            split = end - self.seen
            self.late = k[:, :, split:].detach(), v[:, :, split:].detach()
            k, v = k[:, :, :split], v[:, :, :split]
        self._append(k, v)
        keys, values = key_states, value_states
        if self.late is None and isinstance(self.pairs, DensePairs):
            keys, values = self.pairs.k, self.pairs.v
        keys = keys.view_as(keys)  # the mark is for this pass alone
        setattr(keys, LINK, self)
        return keys, values

    def _refuse_early_drafts(self) -> None:
        if self.state.policy.scope == "model":
            raise UnsupportedCache(
                f"{self.state.policy} shares its budget over all layers, so it compresses after "
                "the whole prompt has passed through the model, and drafted tokens arrived in the "
                "same pass. Use it without assisted (or prompt lookup) decoding."
            )

    def _append(self, k: Tensor, v: Tensor) -> None:
        if self._pairs is None:
            # a prompt compressed on its way is never whole
            whole = 0 if self.state.policy.when.reads else self.state.prompt_end or 0
            self._pairs = DensePairs.empty(k, v, max(k.shape[2], whole))
        self._pairs.append(k, v)
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
        if self._pairs is not None:
            self._take_rows(torch.arange(self._pairs.counts.shape[0]).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these rows."""
        self._take_rows(indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices)

    def _take_rows(self, rows: Tensor) -> None:
        if self._pairs is None:
            return
        rows = rows.to(self._pairs.counts.device)
        self._pairs.take_rows(rows)
        if self.queries is not None:
            self.queries = self.queries.index_select(0, rows)
        if self.kept is not None:
            self.kept = self.kept.index_select(0, rows)
        self.running = {name: t.index_select(0, rows) for name, t in self.running.items()}
        if self.place == 0:
            self.state.take_rows(rows)

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the newest tokens; a positive number is the length to cut down to.

        Raises:
            InvalidInput: they reach into the compressed prompt, whose other tokens are gone.
        """
        count = -tokens_to_remove if tokens_to_remove <= 0 else max(0, self.seen - tokens_to_remove)
        if count == 0 or self._pairs is None:
            return
        if self.state.policy.when.decodes:
            raise InvalidInput(
                f"tokens cannot be taken back under {self.state.policy.when!r}: they have already "
                "changed what is kept. Use when=after_prefill with assisted decoding."
            )
        if not self._pairs.crop(count):
            raise InvalidInput(
                f"crop takes back {count} tokens, which reaches into the compressed prompt. "
                "Only tokens that came after the compression can be taken back."
            )
        self.seen -= count

    # Attention

    def attend(
        self,
        base: Attend,
        query: Tensor,
        mask: Tensor | None,
        scale: float,
        summable: bool = False,
    ) -> Output:
        """Attention over what is held; then, at the prompt's end, compression. If ``summable``, the
        column sums may be added up on the way.
        """
        self.linked, whole = True, _whole(self.pairs)
        if self.late is None:
            out, weights = self._read(base, query, mask, scale, summable)
            return out if whole else refused(out), weights
        late, self.late = self.late, None
        split = query.shape[2] - late[0].shape[2]
        cut = None if mask is None else mask[:, :, :split, : self.seen]
        before, _ = self._read(base, query[:, :, :split], cut, scale, summable)
        self._append(*late)
        rest = None if mask is None else mask[:, :, split:]
        after, _ = over_pairs(self, base, query[:, :, split:], rest, scale)
        return refused(torch.cat([before, after], dim=1)), None

    def _read(
        self, base: Attend, query: Tensor, mask: Tensor | None, scale: float, summable: bool
    ) -> Output:
        out = over_pairs(self, base, query, mask, scale, summable)
        after_pass(self, query, mask, scale)
        if self.window is not None:
            self.window.finish()
            self.window = None
        return out

    def columns_of(self, query: Tensor) -> Int[Tensor, "m"]:
        """The columns that this pass's queries stand at."""
        return torch.arange(self.seen - query.shape[2], self.seen, device=query.device)

    # What is held

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held: pairs, and what a rule that decodes remembers."""
        remembered = [*self.running.values(), *([] if self.queries is None else [self.queries])]
        return self.pairs.nbytes + sum(t.nbytes for t in remembered)

    def hold(self, kept: Kept) -> None:
        """Holds the kept pairs instead of all."""
        self.prune(kept)
        self.kept = kept.counts

    def padded(self) -> Padded:
        """All slots held; layers that hold every column have the same ``columns``."""
        pairs = self.pairs
        if not _whole(pairs):
            return pairs.padded()
        k = pairs.k
        return Padded(k, pairs.v, self.state.origins.columns(k))

    def prune(self, kept: Kept) -> None:
        """The same, but what was kept of the prompt remains on record."""
        policy = self.state.policy
        if not policy.store.exact and isinstance(policy.merge, NoMerge):
            self._pairs = policy.store(self.pairs.only(kept.mask))  # codes stay as they are
        else:
            shared = _whole(self.pairs)
            columns = self.state.origins.columns(kept.k) if shared else self.pairs.columns
            self._pairs = policy.store(kept.store(columns, first=self.seen))
        self.running = {name: compact(t, kept.mask) for name, t in self.running.items()}

    def refill(self, pairs: Pairs, seen: int, finished: int) -> None:
        """Takes over pairs that were read from a file."""
        self._pairs, self.seen, self.finished, self.is_initialized = pairs, seen, finished, True

    def stats(self) -> LayerStats:
        """What was kept of the prompt; call it right after the pass that completed it."""
        pairs = self.pairs
        kept = pairs.counts - (self.seen - self.finished)
        if not pairs.compressed and self.state.pads is not None:
            kept = kept - self.state.pads.to(kept.device)[:, None]
        return LayerStats(
            layer=self.index,
            kept=kept,
            seen=self.finished,
            bytes_before=self.full_bytes,
            bytes_after=self.nbytes,
            compressed=pairs.compressed,
            seconds=self.watch.seconds,
        )


def _whole(pairs: Pairs) -> TypeGuard[DensePairs]:
    """Whether they are of every column, slot i of column i."""
    return isinstance(pairs, DensePairs) and not pairs.compressed


def compact(values: Float[Tensor, "b h n"], kept: Bool[Tensor, "b h n"]) -> Float[Tensor, "b h s"]:
    """The kept slots' values, right-aligned; zeros stand in front."""
    most = int(kept.sum(-1).max())
    order = kept.int().argsort(dim=-1, stable=True)[..., -most:]
    return (values * kept).gather(-1, order)
