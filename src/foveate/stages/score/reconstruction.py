"""KVzip's score: attention of the model while it reads its prompt a second time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.errors import InvalidParameter
from foveate.policies.parameters import Count, Positive
from foveate.policies.protocols import Rereading
from foveate.policies.spec import stage
from foveate.stages.score.attention_rows import rows
from foveate.stages.score.bases import WithoutQueries
from foveate.stages.score.damage import contribution, squared_damage

NOTED = "reconstruction"
Reads = Literal["prompt", "answers", "transcript", "prompt_and_answers", "prompt_and_transcript"]
Pieces = Literal["tokens", "images"]
Over = Literal["prompt", "piece"]
By = Literal["attention", "contribution", "damage"]
ASKED = {
    "answers": "Ask short questions about all of the above, and answer each of them.",
    "transcript": "Repeat all of the above, word by word.",
}
"""Request to the model, unless ``asks`` has another one."""


@stage("reconstruction", head_by_head=True)
class Reconstruction(WithoutQueries):
    """Highest attention that any token of the second reading pays to each slot.

    The maximum is over the tokens and the query heads of the slot's KV head. ``by="contribution"``
    takes attention times the norm of the projected value, as a share of the residual stream
    (KVzip+, :func:`contribution`); ``by="damage"`` sums the squared changes of its heads' outputs
    if the pair is lost (:func:`squared_damage`).

    Args:
        chunk: maximum tokens of the prompt that are reread at a time.
        pieces: "images" rereads each image by itself, and each text between.
        over: tokens of the softmax: the whole prompt and the piece itself, or ("piece") the part of
            the prompt that the piece repeats, the first ``sinks`` tokens, and the piece.
        sinks: first tokens that represent all tokens that ``over="piece"`` leaves out.
        reads: the prompt, or the model's answers after it ("answers", "transcript"), or both.
        asks: requests to the model, instead of :data:`ASKED`; "|" between them.
        longest: maximum tokens of an answer.
        by: highest attention, highest contribution, or sum of squared damage.

    Source: KVzip (arXiv:2505.23416), section 3.2 and 3.3, eq. 2; ``over="piece"`` is its chunked
    scoring; ``by="contribution"`` is KVzip+ of KVzap (arXiv:2601.07891). ``by="damage"`` is
    Foveate's own.

    Raises:
        InvalidParameter: ``asks`` without words, or beside reads="prompt", which has no requests.
    """

    chunk: Positive = 2048
    pieces: Pieces = "tokens"
    over: Over = "prompt"
    sinks: Count = 1
    reads: Reads = "prompt"
    asks: str = ""
    longest: Positive = 128
    by: By = "attention"

    def __post_init__(self) -> None:
        if self.asks and self.reads == "prompt":
            raise InvalidParameter(
                f"asks={self.asks!r} has no effect with reads=prompt. Use reads=answers."
            )
        if self.asks and not _texts(self.asks):
            raise InvalidParameter(f"asks={self.asks!r} has no text. Give at least one question.")

    @property
    def reading(self) -> Rereading:
        """Probe passes after the prompt."""
        kind = self.reads.removeprefix("prompt_and_")
        return Rereading(
            chunk=self.chunk,
            prompt=self.reads.startswith("prompt"),
            by_image=self.pieces == "images",
            follow_ups=() if kind == "prompt" else _texts(self.asks or ASKED[kind]),
            longest=self.longest,
        )

    @property
    def reads_column_maxima(self) -> bool:
        """True where the softmax is that of the model's own attention."""
        return self.over == "prompt" and self.by == "attention"

    @property
    def reads_output_weight(self) -> bool:
        """True for contribution and damage, which are measured after the output projection."""
        return self.by != "attention"

    @property
    def reads_residual_norm(self) -> bool:
        """True for contribution and damage, which are relative to the residual stream."""
        return self.by != "attention"

    def again(self, layer: Layer) -> Mapping[str, Tensor]:
        """Update the maxima, or sums, with one more piece."""
        prompt = layer.k.shape[2] - layer.q.shape[2]
        if layer.column_maxima is not None:
            maxima = layer.column_maxima[..., :prompt]
        else:
            visible_layer = layer if self.over == "prompt" else self._piece_alone(layer, prompt)
            if self.by == "damage":
                total = reduce(
                    add, (x[..., :prompt].sum((2, 3)) for x in squared_damage(visible_layer))
                )
                return {NOTED: total + layer.state[NOTED] if NOTED in layer.state else total}
            paid = (
                contribution(visible_layer) if self.by == "contribution" else _paid(visible_layer)
            )
            maxima = reduce(torch.maximum, (x[..., :prompt].amax((2, 3)) for x in paid))
        if NOTED in layer.state:
            maxima = torch.maximum(maxima, layer.state[NOTED])
        return {NOTED: maxima}

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.state[NOTED])

    def _piece_alone(self, layer: Layer, prompt: int) -> Layer:
        """Return the layer without the prompt's slots that the piece does not repeat.

        Requests and answers come after the prompt and repeat no piece.
        """
        pos, end = layer.pos[..., :prompt], layer.pos[..., :prompt].amax((1, 2)) + 1
        offset = layer.q_pos - end[:, None]
        first = offset.masked_fill(layer.q_pos < 0, int(end.max())).amin(-1)
        last = offset.masked_fill(layer.q_pos < 0, -1).amax(-1)
        low, high, end = (x[:, None, None] for x in (first, last, end))
        repeated = (pos >= low) & (pos <= high) | (pos < self.sinks) | (high >= end)
        later = layer.pos[..., prompt:]
        slots = torch.cat([torch.where(repeated, pos, -1), later], dim=-1)
        return replace(layer, slots=replace(layer.slots, pos=slots))


def _texts(requests: str) -> tuple[str, ...]:
    return tuple(text.strip() for text in requests.split("|") if text.strip())


def _paid(layer: Layer) -> Iterator[Float[Tensor, "b h g r n"]]:
    return (paid for _, paid in rows(layer))
