"""A model whose activations are no numbers is refused with the layer where that begins."""

import pytest
import torch

import foveate
from foveate.errors import InvalidInput
from tests import zoo
from tests.conformance.compare import GREEDY

PROMPT = zoo.prompt("llama", lengths=(23, 31))


@pytest.fixture(params=["keys", "values"])
def broken(request):
    """In its second layer, and in those behind."""
    model = zoo.fresh("llama")
    attention = model.model.layers[1].self_attn
    {"keys": attention.k_proj, "values": attention.v_proj}[request.param].weight.data[0] = torch.inf
    return request.param, model


@pytest.mark.parametrize(
    "spec",
    ["leverage:budget=9", "snapkv:budget=9,window=4", "random:budget=9", "kivi", "kvzip:budget=9"],
)
def test_generate_refuses_it_and_leaves_the_model_as_it_was(broken, spec):
    name, model = broken
    says = pytest.raises(InvalidInput, match=f"the {name} of layer 1 hold NaN or infinity")
    with foveate.compress(model, spec), says:
        model.generate(**PROMPT, **GREEDY)
    model.generate(**PROMPT, **GREEDY)


@pytest.mark.parametrize("method", ["q_filters", "expected_attention", "kvzap", "recommended"])
def test_so_does_calibrate(broken, method):
    name, model = broken
    with pytest.raises(InvalidInput, match=f"the {name} of layer 1 hold NaN or infinity"):
        foveate.calibrate(model, method, [PROMPT])
