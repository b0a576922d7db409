"""Probe passes after a prompt's own cache, such as the prompt once more, which KVzip needs.

The decoder's inputs are stored while the prompt is read: embeddings, so that no image is encoded
again. They are read again at the positions after the prompt, in chunks; the score reads the layers,
and the pairs of each chunk are discarded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import DynamicCache

from foveate.errors import MissingModality, UnsupportedModel
from foveate.hf.attention.masks import of_queries, over_slots
from foveate.hf.layer.state import CacheState, RereadPass
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.hf.model import token_selection
from foveate.hf.model.internals import CACHE_NAMES, cache_argument
from foveate.hf.probe.questions import Asker, look_back, restored_after
from foveate.policies.policy import Policy

Inputs = Mapping[str, Any]
_OUTPUTS = ("output_attentions", "output_hidden_states", "return_dict", "use_cache")
_EMBEDS, _MASK, _POSITIONS = "inputs_embeds", "attention_mask", "position_ids"


class PassInputs(NamedTuple):
    """Inputs of the decoder in one pass of a prompt, and the pass's first column.

    If some of its tokens were not computed by all layers, ``columns`` [b, s] are those of the
    computed tokens, padded with -1 in front; the inputs are those of the computed tokens, except
    for the mask, which is over all tokens.
    """

    first: int
    inputs: Inputs
    columns: Int[Tensor, "b s"] | None = None

    @classmethod
    def of(cls, first: int, inputs: Inputs) -> PassInputs:
        """Select the inputs without the cache and the arguments about outputs."""
        left_out = (*CACHE_NAMES, *_OUTPUTS)
        own = {n: x for n, x in inputs.items() if x is not None and n not in left_out}
        return cls(first, own)

    @property
    def length(self) -> int:
        """Number of tokens."""
        return self._shape[1]

    @property
    def device(self) -> torch.device:
        """Device of the inputs."""
        return next(x.device for x in self.inputs.values() if isinstance(x, Tensor))

    @property
    def _shape(self) -> tuple[int, ...]:
        tokens = self.inputs.get(_EMBEDS, self.inputs.get("input_ids"))
        return (1, 0) if tokens is None else tuple(tokens.shape[:2])

    def parts(self, chunk: int, borders: Sequence[int] = ()) -> Iterator[PassInputs]:
        """Split the pass into pieces of at most ``chunk`` tokens, none of them across a border (a
        column).

        Raises:
            UnsupportedModel: an input without one entry for every token.
        """
        if self.columns is not None:
            yield from self._computed_parts(self.columns, chunk, borders)
            return
        inside = [x - self.first for x in borders if 0 < x - self.first < self.length]
        if self.length <= chunk and not inside:
            yield self
            return
        for start, end in _spans([0, *inside, self.length], chunk):
            span = slice(start, end)
            pieces = {name: self._piece(name, x, span) for name, x in self.inputs.items()}
            yield PassInputs(self.first + start, pieces)

    def _computed_parts(
        self, columns: Int[Tensor, "b s"], chunk: int, borders: Sequence[int]
    ) -> Iterator[PassInputs]:
        """Split the computed tokens by column, so that the pieces of all rows end at the same
        column.
        """
        end = int(columns.max()) + 1
        inside = sorted(x for x in set(borders) if self.first < x < end)
        for start, stop in _spans([self.first, *inside, end], chunk):
            stays = (columns >= start) & (columns < stop)
            if bool(stays.any()):
                yield self.only(stays)

    def only(self, stays: Bool[Tensor, "b s"]) -> PassInputs:
        """Select some of the computed tokens."""
        columns = self.own_columns
        order = stays.long().argsort(dim=1, stable=True)[:, -int(stays.sum(-1).max()) :]
        real = stays.gather(1, order)
        first = stays.long().argmax(-1, keepdim=True)
        order = order.where(real, first)  # padding repeats a real position
        selected = columns.gather(1, order).masked_fill(~real, -1)
        hidden = token_selection.states_at(self.inputs[_EMBEDS], order)
        cut = token_selection.at_places(self.inputs, hidden, order, selected)
        return PassInputs(self.first, {**cut, _MASK: self.inputs.get(_MASK)}, selected)

    @property
    def own_columns(self) -> Int[Tensor, "b s"]:
        """Columns of its tokens."""
        if self.columns is not None:
            return self.columns
        columns = torch.arange(self.first, self.first + self.length, device=self.device)
        return columns.expand(self._shape[0], -1)

    def _piece(self, name: str, value: Any, span: slice) -> Any:
        if not isinstance(value, (Tensor, list, dict)):
            return value
        if name == _MASK and isinstance(value, Tensor) and value.ndim == 4:
            return value[:, :, span]  # [b, 1, tokens, columns]
        if name == _MASK:
            return value
        if name == _POSITIONS and isinstance(value, Tensor):
            return value[..., span]
        if isinstance(value, Tensor) and value.ndim == 1 and len(value) == self.length:
            return value[span]
        if isinstance(value, Tensor) and value.ndim > 1 and value.shape[1] == self.length:
            return value[:, span]
        raise UnsupportedModel(
            f"this model's decoder takes {name} with its prompt, which cannot be read again in "
            f"pieces. Give chunk={self.length} or more."
        )


def _spans(borders: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """Yield spans from each border to the next, in steps of at most ``limit``."""
    for first, last in pairwise(borders):
        for start in range(first, last, limit):
            yield start, min(start + limit, last)


def note_pass(state: CacheState, seen: int, inputs: Inputs) -> None:
    """Store a pass of a prompt that its policy, or a recording's, may read again. If only other
    text is read after the prompt, the positions of the latest pass are enough.
    """
    score, inputs_of_pass = state.policy.reads_again, PassInputs.of(seen, inputs)
    if score is None or score.reading.prompt:
        state.update_turn(passes=(*state.turn.passes, inputs_of_pass))
        return
    positions = {name: x for name, x in inputs_of_pass.inputs.items() if name == _POSITIONS}
    state.update_turn(passes=(PassInputs(seen, positions),))


def note_computed(
    state: CacheState,
    door: Inputs,
    hidden: Float[Tensor, "b t c"],
    index: Int[Tensor, "b s"] | None,
    columns: Int[Tensor, "b s"],
) -> None:
    """Replace the latest stored pass by the tokens that all layers computed. ``door``: the
    decoder's inputs, ``hidden``: their embeddings; ``index``: the computed positions among them
    (None: all), which have these ``columns``.
    """
    score = state.policy.reads_again
    if not state.turn.passes or (score is not None and not score.reading.prompt):
        return
    *earlier, last = state.turn.passes
    inputs = {**PassInputs.of(last.first, door).inputs, _EMBEDS: hidden}
    if index is not None:
        hidden = token_selection.states_at(hidden, index)
        inputs = token_selection.at_places(inputs, hidden, index, columns)
    inputs.pop("input_ids", None)
    computed = PassInputs(last.first, {**inputs, _MASK: last.inputs.get(_MASK)}, columns)
    # padding is known from the complete prompt's mask; after pruning, masks have gaps
    state.update_turn(passes=(*earlier, computed), padding_told=True)


def keeps_passes(policy: Policy) -> bool:
    """Return True if a prompt's inputs are stored: its policy reads it again, or a recording's
    may.
    """
    return policy.reads_again is not None or getattr(policy.score, "keeps_passes", False)


@torch.no_grad()
def read_again(decoder: nn.Module, asker: Asker | None, cache: DynamicCache) -> None:
    """Read what the policy needs after a prompt, in probe passes; then store the pairs that the
    policy keeps.

    Raises:
        MissingModality: the policy reads images one by one, and the visual tokens are unknown.
        UnsupportedModel: masks or other inputs that cannot be repeated.
    """
    state, layers = known_state(cache), foveate_layers(cache)
    score, passes = state.policy.reads_again, state.turn.passes
    if score is None:
        return
    state.update_turn(passes=())
    reading, end, argument = score.reading, layers[0].seen, cache_argument(decoder)
    with layers[0].watch.running(layers[0].pairs.counts.device):
        if reading.prompt:
            borders = image_borders(state) if reading.by_image else ()
            for part in (part for p in passes for part in p.parts(reading.chunk, borders)):
                inputs = _after(part, passes, end, state)
                with restored_after(cache, RereadPass(_order(part, state))):
                    decoder(**inputs, **{argument: cache}, use_cache=True)
        if asker is not None:
            start = _start(passes)
            for text in reading.follow_ups:
                if reading.bare:
                    asker.read_bare(text, cache, start)
                else:
                    asker.read(text, reading.longest, cache, start)
            if reading.closing:
                asker.read_bare(asker.closing, cache, start)
            if reading.questions:
                look_back(asker, reading, cache, _start(passes, reading.after))
    for layer in layers:
        layer.finish()


def image_borders(state: CacheState) -> tuple[int, ...]:
    """Return the columns at which another image, or the text after one, begins in some row.

    Raises:
        MissingModality: the visual tokens are unknown.
    """
    images = state.images()
    if images is None:
        raise MissingModality(
            "the visual tokens are unknown, so images cannot be read again one by one. Pass "
            "input_ids, or compress(..., vision=...); or use pieces=tokens."
        )
    changes = (images[0][:, 1:] != images[0][:, :-1]).any(0)
    return tuple((changes.nonzero()[:, 0] + 1).tolist())


def _order(part: PassInputs, state: CacheState) -> Tensor:
    """Return the positions of a piece's tokens in their rows' prompts; -1 for padding."""
    columns = part.own_columns
    pads = state.tokens.padding(columns)[:, None]
    return torch.where(columns < 0, -1, columns - pads).clamp_min(-1)


def _start(passes: Sequence[PassInputs], tokens: int | None = None) -> Tensor | None:
    """Return the position after the prompt, or after its first ``tokens``, as [b, 1] or [axes, b,
    1]; None if the prompt had no ``position_ids``.
    """
    positions = [earlier.inputs[_POSITIONS] for earlier in passes if _POSITIONS in earlier.inputs]
    if not positions or not all(isinstance(x, Tensor) for x in positions):
        return None
    if tokens is not None:
        positions = [torch.cat(positions, dim=-1)[..., :tokens]]
    latest = _latest(positions)
    return latest if latest.ndim == 2 else latest.expand(positions[0].shape[0], -1, -1)


def _after(
    part: PassInputs, passes: Sequence[PassInputs], end: int, state: CacheState
) -> dict[str, Any]:
    """Return a piece of the prompt as inputs that follow its ``end`` tokens."""
    inputs = dict(part.inputs)
    if crossed := [name for name in inputs if name.startswith("cross_attention")]:
        raise UnsupportedModel(
            f"this model's decoder attends to images outside of its prompt ({crossed[0]}), which a "
            "second reading does not support. Use a method that reads the prompt once."
        )
    if part.columns is not None:
        inputs[_MASK] = _mask_of_computed(part, part.columns, end, state)
    elif _MASK in inputs:
        inputs[_MASK] = _mask(part, passes[-1].inputs.get(_MASK), end)
    if isinstance(positions := inputs.get(_POSITIONS), Tensor):
        seen = [earlier.inputs.get(_POSITIONS, earlier.own_columns) for earlier in passes]
        inputs[_POSITIONS] = positions + _latest(seen) - _over_axes(positions, "amin")
    if "cache_position" in inputs:
        inputs["cache_position"] = end + torch.arange(part.length, device=part.device)
    return inputs


def _latest(positions: Sequence[Tensor]) -> Tensor:
    """Return the position after all of these, by row: M-RoPE has several axes in front."""
    highest = torch.stack([_over_axes(x, "amax") for x in positions]).amax(0)
    return highest + 1


def _over_axes(positions: Tensor, how: str) -> Tensor:
    """Reduce positions by row with ``how`` ("amin", "amax"), to [b, 1] or [1, b, 1]."""
    extremes: Tensor = getattr(positions, how)(-1, keepdim=True)
    return extremes if extremes.ndim == 2 else getattr(extremes, how)(0, keepdim=True)


def _mask(part: PassInputs, last: Any, end: int) -> Any:
    """Return a piece's mask: over the complete prompt as its last token sees it, then over the
    piece itself.
    """
    mask, own = part.inputs[_MASK], slice(part.first, part.first + part.length)
    if isinstance(mask, dict) and all(x is None for x in mask.values()):
        return mask
    if not isinstance(mask, Tensor) or not isinstance(last, Tensor) or last.shape[-1] != end:
        raise _own_masks(mask)
    if mask.ndim == 2:
        return torch.cat([last, last[:, own]], dim=1)
    seen = last[..., -1:, :].expand(*last.shape[:-2], part.length, end)
    return torch.cat([seen, mask[..., own]], dim=-1)


def _mask_of_computed(
    part: PassInputs, columns: Int[Tensor, "b s"], end: int, state: CacheState
) -> Any:
    """Return the mask of a piece of which some tokens were not computed: over all of the prompt
    except padding, then over the piece itself.
    """
    mask, real = part.inputs.get(_MASK), columns >= 0
    before = torch.arange(end, device=real.device) >= state.tokens.padding(real)[:, None]
    visible = torch.cat([before, real], dim=1)
    if mask is None or (isinstance(mask, dict) and all(x is None for x in mask.values())):
        if bool(visible.all()):
            return mask
        if mask is None:
            return visible.long()
    if not isinstance(mask, Tensor):
        raise _own_masks(mask)
    if mask.ndim == 2:
        return visible.to(mask.dtype)
    own = over_slots(of_queries(mask, columns - part.first), columns[:, None], columns[0])
    seen = torch.cat([before[:, None, None].expand(*own.shape[:3], -1), own], dim=3)
    if mask.dtype == torch.bool:
        return seen
    return torch.zeros_like(seen, dtype=mask.dtype).masked_fill(~seen, torch.finfo(mask.dtype).min)


def _own_masks(mask: Any) -> UnsupportedModel:
    return UnsupportedModel(
        f"this model's decoder reads its prompt with masks of its own ({type(mask).__name__}), "
        "which cannot be built for a second reading. Use a method that reads the prompt once."
    )
