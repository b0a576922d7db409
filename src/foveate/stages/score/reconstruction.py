"""KVzip's score: what the model attends to as it reads its prompt a second time."""

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
from foveate.stages.score.bases import WithoutQueries
from foveate.stages.score.damage import contribution, squared_damage
from foveate.stages.score.rows import rows

NOTED = "reconstruction"
Reads = Literal["prompt", "answers", "transcript", "prompt_and_answers", "prompt_and_transcript"]
Pieces = Literal["tokens", "images"]
Over = Literal["prompt", "piece"]
By = Literal["attention", "contribution", "damage"]
ASKED = {
    "answers": "Ask short questions about all of the above, and answer each of them.",
    "transcript": "Repeat all of the above, word by word.",
}
"""What the model is asked, unless ``asks`` says something else."""


@stage("reconstruction", head_by_head=True)
class Reconstruction(WithoutQueries):
    """The most attention that a token of the second reading pays to each slot, over its query heads
    and tokens; by="contribution" the same of that attention times the length of its projected
    value, as a share of the residual stream (KVzip+, :func:`contribution`); or by="damage" the sum
    of the squares of what its heads' outputs would lose with it (:func:`squared_damage`).

    Args:
        chunk: the most tokens of the prompt that are read again at a time.
        pieces: "images" reads each image by itself, and each text between.
        over: what the softmax is over: the whole prompt and the piece itself, or ("piece") that
            part of the prompt which the piece repeats, the first ``sinks`` tokens, and the piece.
        sinks: first tokens that stand for all that ``over="piece"`` leaves out.
        reads: the prompt, or what the model answers after it ("answers", "transcript"), or both.
        asks: what the model is asked, instead of :data:`ASKED`; "|" stands between questions.
        longest: the most tokens of an answer.
        by: the most attention, the most contribution, or the sum of squared damage.

    Source: KVzip (arXiv:2505.23416), section 3.2 and 3.3, eq. 2; ``over="piece"`` is its chunked
    scoring; ``by="contribution"`` is KVzip+ of KVzap (arXiv:2601.07891). ``by="damage"`` is
    Foveate's own.

    Raises:
        InvalidParameter: ``asks`` without words, or where nothing is asked.
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
                f"asks={self.asks!r}: reads=prompt asks nothing. Use reads=answers."
            )
        if self.asks and not _texts(self.asks):
            raise InvalidParameter(f"asks={self.asks!r}: there are no words in it.")

    @property
    def reading(self) -> Rereading:
        """What is read after the prompt."""
        what = self.reads.removeprefix("prompt_and_")
        return Rereading(
            chunk=self.chunk,
            prompt=self.reads.startswith("prompt"),
            by_image=self.pieces == "images",
            follow_ups=() if what == "prompt" else _texts(self.asks or ASKED[what]),
            longest=self.longest,
        )

    @property
    def reads_column_maxima(self) -> bool:
        """Where the softmax is that of the model's own attention."""
        return self.over == "prompt" and self.by == "attention"

    @property
    def reads_output_weight(self) -> bool:
        """What a head's output loses, or has of a pair, counts after its projection."""
        return self.by != "attention"

    @property
    def reads_residual_norm(self) -> bool:
        """And beside what it is added to."""
        return self.by != "attention"

    def again(self, layer: Layer) -> Mapping[str, Tensor]:
        """The maxima, or sums, over one more piece."""
        prompt = layer.k.shape[2] - layer.q.shape[2]
        if layer.column_maxima is not None:
            most = layer.column_maxima[..., :prompt]
        else:
            shown = layer if self.over == "prompt" else self._piece_alone(layer, prompt)
            if self.by == "damage":
                total = reduce(add, (x[..., :prompt].sum((2, 3)) for x in squared_damage(shown)))
                return {NOTED: total + layer.state[NOTED] if NOTED in layer.state else total}
            paid = contribution(shown) if self.by == "contribution" else _paid(shown)
            most = reduce(torch.maximum, (x[..., :prompt].amax((2, 3)) for x in paid))
        if NOTED in layer.state:
            most = torch.maximum(most, layer.state[NOTED])
        return {NOTED: most}

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.state[NOTED])

    def _piece_alone(self, layer: Layer, prompt: int) -> Layer:
        """The layer without the slots of the prompt that a piece of it does not repeat. What was
        asked and answered stands after the prompt, and repeats no piece.
        """
        pos, end = layer.pos[..., :prompt], layer.pos[..., :prompt].amax((1, 2)) + 1
        place = layer.q_pos - end[:, None]
        first = place.masked_fill(layer.q_pos < 0, int(end.max())).amin(-1)
        last = place.masked_fill(layer.q_pos < 0, -1).amax(-1)
        low, high, end = (x[:, None, None] for x in (first, last, end))
        repeated = (pos >= low) & (pos <= high) | (pos < self.sinks) | (high >= end)
        beside = layer.pos[..., prompt:]
        slots = torch.cat([torch.where(repeated, pos, -1), beside], dim=-1)
        return replace(layer, slots=replace(layer.slots, pos=slots))


def _texts(asks: str) -> tuple[str, ...]:
    return tuple(text.strip() for text in asks.split("|") if text.strip())


def _paid(layer: Layer) -> Iterator[Float[Tensor, "b h g r n"]]:
    return (paid for _, paid in rows(layer))
