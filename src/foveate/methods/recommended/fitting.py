"""How a profile is fitted: maps from a pair to what it is worth, head by head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.methods.recommended.foretold import FACTS, facts
from foveate.methods.recommended.head_levels import levels
from foveate.methods.recommended.worth import TARGETS, answered, watched, worth
from foveate.ops.ridge import ridge_regression
from foveate.ops.rotation import Rotation
from foveate.policies.gathering import GATHERINGS, Asked, Sums
from foveate.policies.protocols import Score
from foveate.stages.score.linear_maps import products

RIDGE = 0.01


class SecondReading:
    """Ridge regression, head by head, of what a pair is worth on the pair: sums of products over
    all pairs of all prompts.
    """

    turns_back: ClassVar[bool] = False
    turns_far_keys: ClassVar[bool] = True
    watched: ClassVar[Score | None] = None
    targets: ClassVar[tuple[str, ...]] = TARGETS
    names: ClassVar[tuple[str, ...]] = ("levels", "of_facts", "of_key", "of_value", "offset")

    def watching(self, target: str, questions: Asked) -> Score:
        return watched(target, questions.questions, questions.after)

    def reached(self, target: str, sums: Sums) -> str:
        return "damage" if target == "answers" and not sums["answered"] else target

    def gather(self, layer: Layer, rotation: Rotation | None) -> Sums:
        weights = worth(layer)
        of_pairs, goals = products(layer, weights, facts(layer))
        rows = zip(weights, layer.valid[:, 0], strict=True)
        return {
            "products": of_pairs,
            "told": goals,
            "of_key": weights.new_zeros(layer.k.shape[-1]),  # for its length
            "levels": torch.stack([levels(row[:, one]) for row, one in rows]).sum(0),
            "answered": weights.new_tensor(float(answered(layer))),
            "prompts": weights.new_tensor(float(len(weights))),
        }

    def finish(self, sums: Sums, rotation: Rotation | None) -> Mapping[str, Tensor]:
        weights, offset = ridge_regression(sums["products"], sums["told"], RIDGE)
        ends = [FACTS, FACTS + len(sums["of_key"])]
        of_facts, of_key, of_value = weights.tensor_split(ends, dim=1)
        parts = {"of_facts": of_facts, "of_key": of_key, "of_value": of_value, "offset": offset}
        parts["levels"] = sums["levels"] / sums["prompts"]
        return {name: part.float() for name, part in parts.items()}


GATHERINGS["recommended"] = SecondReading()
