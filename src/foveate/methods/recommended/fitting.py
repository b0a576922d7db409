"""Fitting of a profile for ``recommended``: linear maps from a pair to its measured score.

The scores are measured while a prompt is read a second time and questions are answered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.cache.layer import Layer, Scores
from foveate.methods.recommended.head_levels import levels
from foveate.methods.recommended.predicted import FACTS, LEAST, facts
from foveate.ops.ridge import ridge_regression
from foveate.ops.rotation import Rotation
from foveate.policies.gathering import GATHERINGS, Asked, Sums, Targeted
from foveate.policies.parameters import Count, Positive
from foveate.policies.protocols import Rereading, Score
from foveate.stages.score.bases import WithoutQueries
from foveate.stages.score.damage import answer_damage, squared_damage
from foveate.stages.score.linear_maps import products
from foveate.stages.score.reconstruction import NOTED, Reconstruction

RIDGE = 0.01
UNASKED = -1.0
"""Sum of squares at pairs that no question followed."""


@dataclass(frozen=True, kw_only=True)
class ReadingDamage(WithoutQueries):
    """Measured damage of losing each pair, during a second reading and the model's answers.

    State: S ("sum"), the square of M ("most"), and the sum of squared damage to answers
    ("answers"), ``UNASKED`` where there are none.

    Args:
        chunk: maximum tokens of the prompt that are reread at a time.
        questions: token ids of each, up to where the model answers.
        after: tokens of the prompt that they follow.
        longest: maximum tokens of an answer.
    """

    reads_output_weight: ClassVar[bool] = True
    reads_residual_norm: ClassVar[bool] = True
    chunk: Positive = 2048
    questions: tuple[tuple[int, ...], ...] = ()
    after: Count = 0
    longest: Positive = 24

    @property
    def reading(self) -> Rereading:
        """Probe passes over the prompt, then over the questions."""
        return Rereading(
            self.chunk, longest=self.longest, questions=self.questions, after=self.after
        )

    def again(self, layer: Layer) -> Mapping[str, Tensor]:
        """Update sums and maxima with one more piece of the prompt."""
        prompt = layer.k.shape[2] - layer.q.shape[2]
        zeros = layer.k.new_zeros((*layer.k.shape[:2], prompt), dtype=torch.float32)
        total, maxima = (layer.state.get(name, zeros) for name in ("sum", "most"))
        for damage in squared_damage(layer):
            total = total + damage[..., :prompt].sum((2, 3))
            maxima = torch.maximum(maxima, damage[..., :prompt].amax((2, 3)))
        unasked = layer.state.get("answers", zeros + UNASKED)
        return {"sum": total, "most": maxima, "answers": unasked}

    def answered(self, layer: Layer, gradient: Float[Tensor, "b m hq e"]) -> Mapping[str, Tensor]:
        """Add the squared damage to the answer of one more question."""
        seen = layer.k.shape[2] - layer.q.shape[2]
        total = layer.state["answers"].clone()
        lost = answer_damage(layer, gradient)[..., :seen].square()
        total[..., :seen] = total[..., :seen].clamp_min(0) + lost
        return {"answers": total}

    def __call__(self, layer: Layer) -> Scores:
        return Scores(layer.state["sum"])


def worth(layer: Layer) -> Float[Tensor, "b h n"]:
    """Return the target of the maps for each pair, from the notes in the layer's state.

    All three of S, M and F where a question followed the pair, otherwise S and M.
    """
    if NOTED in layer.state:
        return layer.state[NOTED].clamp_min(LEAST).log()
    s, m, f = (_half_log(layer.state[name]) for name in ("sum", "most", "answers"))
    return torch.where(layer.state["answers"] < 0, (s + m) / 2, (s + m + f) / 3)


def answered(layer: Layer) -> bool:
    """Return True if any answer was measured."""
    return "answers" in layer.state and bool((layer.state["answers"] >= 0).any())


def _half_log(squares: Float[Tensor, "b h n"]) -> Float[Tensor, "b h n"]:
    return squares.clamp_min(LEAST**2).log() / 2


class SecondReading(Targeted):
    """Ridge regression, head by head, of a pair's measured score on the pair.

    It collects sums of products over all pairs of all prompts.
    """

    turns_far_keys: ClassVar[bool] = True
    targets: ClassVar[tuple[str, ...]] = ("answers", "damage", "attention")
    names: ClassVar[tuple[str, ...]] = ("levels", "of_facts", "of_key", "of_value", "offset")

    def watching(self, target: str, questions: Asked) -> Score:
        if target == "attention":
            return Reconstruction()
        seen_questions = questions.questions if target == "answers" else ()
        return ReadingDamage(questions=seen_questions, after=questions.after)

    def reached(self, target: str, sums: Sums) -> str:
        return "damage" if target == "answers" and not sums["answered"] else target

    def gather(self, layer: Layer, rotation: Rotation | None) -> Sums:
        weights = worth(layer)
        of_pairs, goals = products(layer, weights, facts(layer))
        rows = zip(weights, layer.valid[:, 0], strict=True)
        return {
            "products": of_pairs,
            "goals": goals,
            "of_key": weights.new_zeros(layer.k.shape[-1]),  # for its length
            "levels": torch.stack([levels(row[:, valid]) for row, valid in rows]).sum(0),
            "answered": weights.new_tensor(float(answered(layer))),
            "prompts": weights.new_tensor(float(len(weights))),
        }

    def finish(self, sums: Sums, rotation: Rotation | None) -> Mapping[str, Tensor]:
        weights, offset = ridge_regression(sums["products"], sums["goals"], RIDGE)
        ends = [FACTS, FACTS + len(sums["of_key"])]
        of_facts, of_key, of_value = weights.tensor_split(ends, dim=1)
        parts = {"of_facts": of_facts, "of_key": of_key, "of_value": of_value, "offset": offset}
        parts["levels"] = sums["levels"] / sums["prompts"]
        return {name: part.float() for name, part in parts.items()}


GATHERINGS["recommended"] = SecondReading()
