"""What a pair is worth, measured as a prompt is read a second time and questions are answered: what
the maps of a profile are fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.methods.recommended.foretold import LEAST
from foveate.policies.parameters import Count, Positive
from foveate.policies.protocols import Rereading, Score
from foveate.stages.score.bases import WithoutQueries
from foveate.stages.score.damage import answer_damage, squared_damage
from foveate.stages.score.reconstruction import NOTED, Reconstruction

Target = Literal["answers", "damage", "attention"]
TARGETS: tuple[str, ...] = get_args(Target)  # the best first
UNASKED = -1.0
"""Stands in sums of squares at pairs that no question came after."""


@dataclass(frozen=True, kw_only=True)
class ReadingDamage(WithoutQueries):
    """Notes of every pair S ("sum"), the square of M ("most"), and the sum of the squares of what
    its loss does to answers ("answers"), ``UNASKED`` where there are none.

    Args:
        chunk: the most tokens of the prompt that are read again at a time.
        questions: token ids of each, up to where the model answers.
        after: tokens of the prompt that they follow.
        longest: the most tokens of an answer.
    """

    reads_output_weight: ClassVar[bool] = True
    reads_residual_norm: ClassVar[bool] = True
    chunk: Positive = 2048
    questions: tuple[tuple[int, ...], ...] = ()
    after: Count = 0
    longest: Positive = 24

    @property
    def reading(self) -> Rereading:
        """The prompt, then the questions."""
        return Rereading(
            self.chunk, longest=self.longest, questions=self.questions, after=self.after
        )

    def again(self, layer: Layer) -> Mapping[str, Tensor]:
        """Sums and maxima over one more piece of the prompt."""
        prompt = layer.k.shape[2] - layer.q.shape[2]
        nothing = layer.k.new_zeros((*layer.k.shape[:2], prompt), dtype=torch.float32)
        total, most = (layer.state.get(name, nothing) for name in ("sum", "most"))
        for some in squared_damage(layer):
            total = total + some[..., :prompt].sum((2, 3))
            most = torch.maximum(most, some[..., :prompt].amax((2, 3)))
        unasked = layer.state.get("answers", nothing + UNASKED)
        return {"sum": total, "most": most, "answers": unasked}

    def answered(self, layer: Layer, gradient: Float[Tensor, "b m hq e"]) -> Mapping[str, Tensor]:
        """One more question adds the squares of what its answer would lose."""
        seen = layer.k.shape[2] - layer.q.shape[2]
        total = layer.state["answers"].clone()
        lost = answer_damage(layer, gradient)[..., :seen].square()
        total[..., :seen] = total[..., :seen].clamp_min(0) + lost
        return {"answers": total}

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.state["sum"])


def watched(target: str, questions: tuple[tuple[int, ...], ...], after: int) -> Score:
    """The score whose notes :func:`worth` reads."""
    if target == "attention":
        return Reconstruction()
    seen_questions = questions if target == "answers" else ()
    return ReadingDamage(questions=seen_questions, after=after)


def worth(layer: Layer) -> Float[Tensor, "b h n"]:
    """What the maps are to foretell of each pair, by the notes that the layer's state has: those of
    all three where a question came after the pair, otherwise of S and M.
    """
    if NOTED in layer.state:
        return layer.state[NOTED].clamp_min(LEAST).log()
    s, m, f = (_half_log(layer.state[name]) for name in ("sum", "most", "answers"))
    return torch.where(layer.state["answers"] < 0, (s + m) / 2, (s + m + f) / 3)


def answered(layer: Layer) -> bool:
    """Whether any answer counted."""
    return "answers" in layer.state and bool((layer.state["answers"] >= 0).any())


def _half_log(squares: Float[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    return squares.clamp_min(LEAST**2).log() / 2
