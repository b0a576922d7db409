"""What layers note of themselves as true or false is counted in a prompt's statistics."""

from __future__ import annotations

import pytest

import foveate
from tests import zoo

LAYERS = 3


def noted(spec):
    model, inputs = zoo.build("llava"), zoo.prompt("llava")
    with foveate.compress(model, spec) as session:
        session.prefill(**inputs)
        return {name: layers.tolist() for name, layers in session.stats.noted.items()}


@pytest.mark.parametrize(("rule", "layers"), [("always", LAYERS), ("never", 0)])
def test_layers_that_david_decoupled(rule, layers):
    (found,) = noted(f"david:budget=50%,recent=4,rule={rule}").values()
    assert {*found} == {layers}


@pytest.mark.parametrize("spec", ["david:budget=100%,recent=4", "snapkv:budget=50%,window=4"])
def test_nothing_is_counted_where_nothing_is_noted(spec):
    assert noted(spec) == {}
