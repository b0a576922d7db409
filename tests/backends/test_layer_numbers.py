"""Errors about a layer name it as the model does, whichever of its layers are compressed."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

import foveate
from foveate.cache.layer import Scores
from foveate.compression.reading import PromptReading
from foveate.errors import InvalidInput, InvalidParameter
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK
from foveate.vllm.plans.boundaries import Boundaries
from foveate.vllm.plans.plans import Offer, Plan
from foveate.vllm.plans.settings import settings_from
from foveate.vllm.worker.prefill import after_pass
from foveate.vllm.worker.prompts import Prompts
from foveate.vllm.worker.rows import RequestPrompt, Row
from tests import zoo


@dataclass(frozen=True, kw_only=True)
class BreaksDown:
    """A score that is NaN in one of the compressed layers."""

    place: int = 1

    def queries(self, tokens):
        return 1

    def __call__(self, layer):
        number = torch.nan if layer.ordinal == self.place else 1.0
        return Scores(torch.full(layer.pos.shape, number))


POLICY = foveate.Policy(score=BreaksDown(), budget=Uniform(amount=8), select=TopK())


@pytest.mark.parametrize(
    ("family", "number"),
    [("gemma3", 3), ("llava", 1)],
    ids=["beside sliding layers", "all layers compressed"],
)
def test_a_score_that_breaks_down_names_the_models_own_layer(family, number):
    model = zoo.build(family)
    says = pytest.raises(InvalidParameter, match=f"scores of layer {number} contain NaN")
    with foveate.compress(model, POLICY) as session, says:
        session.prefill(**zoo.prompt(family))


@pytest.mark.parametrize(
    ("names", "number"),
    [
        (["model.layers.1.self_attn.attn", "model.layers.3.self_attn.attn"], 3),
        (["first", "second"], 1),
        (["model.1.layers.1.attn", "model.1.layers.3.attn"], 1),
    ],
    ids=["one number", "no number", "two numbers"],
)
def test_a_served_layer_has_the_number_in_its_name(names, number):
    n, ordinals = 20, {name: ordinal for ordinal, name in enumerate(names)}
    offer = Offer(settings_from({"foveate": {"policy": "knorm:budget=8"}}))
    prompts = Prompts(offer, ordinals, SimpleNamespace(device="cpu"))
    vision = torch.zeros(n, dtype=torch.bool)
    prompt = RequestPrompt("a", Plan(n, n), POLICY, vision, PromptReading(POLICY, len(names)))
    table, read = torch.arange(2), {"start": 0, "computed": 0, "new": n, "moves": True}
    row = Row(prompt, Boundaries(n, n, budget=8), table, 20, before=0, until=n, **read)
    pairs = torch.randn(1, 2, n, 4), torch.randn(1, 2, n, 4)

    def complete(place):
        after_pass(prompts, [row], place, torch.randn(n, 4, 4), lambda: pairs, 0.5)

    complete(0)
    with pytest.raises(InvalidParameter, match=f"scores of layer {number} contain NaN"):
        complete(1)
    pairs[1][0, 1, 7] = torch.nan
    with pytest.raises(InvalidInput, match=f"values of layer {number} hold NaN .* at 1 of 20"):
        complete(1)
