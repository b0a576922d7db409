"""Traits that stages declare."""

import importlib

import pytest

from foveate.policies import traits
from foveate.policies.spec import STAGES
from foveate.stages.when import OverBudget


def test_a_stage_that_says_nothing_has_the_defaults():
    assert {name: traits.trait(object(), name) for name in traits.DEFAULTS} == dict(traits.DEFAULTS)
    assert traits.trait(OverBudget(every=4), "beyond") == 4
    with pytest.raises(KeyError):
        traits.trait(object(), "spare")


def test_every_trait_is_said_by_a_stage():
    importlib.import_module("foveate.methods")
    stages = [stage for _, stage in STAGES.items()]
    unsaid = [name for name in traits.DEFAULTS if not any(hasattr(s, name) for s in stages)]
    assert unsaid == []
