"""What stages say of themselves, and the names that this had."""

import importlib

import pytest

import foveate
from foveate.errors import FoveateDeprecationWarning
from foveate.policies import protocols, traits
from foveate.policies.spec import STAGES
from foveate.stages.score.column_sums import ColumnSums
from foveate.stages.select import TopK
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


@pytest.mark.parametrize(("name", "says"), traits.PROTOCOLS.items())
def test_former_protocols_tell_who_says_something(name, says):
    with pytest.warns(FoveateDeprecationWarning, match=name):
        protocol = getattr(protocols, name)
    stages = [TopK(), ColumnSums(), OverBudget(), foveate.snapkv(budget=0.2).budget]
    assert [isinstance(s, protocol) for s in stages] == [hasattr(s, says) for s in stages]
    assert any(isinstance(s, protocol) for s in stages) or name in ("Sparing", "ReadsOutputWeight")


def test_former_functions_answer_as_they_did():
    policy = foveate.policy("h2o+mixkv:budget=20%,when=over_budget(growing=true)")
    mixed = foveate.mixkv(budget=0.2).score
    asked = {
        "reads_window_sums": (mixed, mixed.of),
        "reads_column_sums": (policy.score, True),
        "reads_output_weight": (policy.score, False),
        "grows": (policy.when, True),
        "may_spare": (policy.select, False),
        "keeps_by_position": (policy.select, True),
        "beyond": (policy.when, 0),
        "is_head_by_head": (policy.select, True),
    }
    for name, (stage, said) in asked.items():
        with pytest.warns(FoveateDeprecationWarning, match=name):
            function = getattr(protocols, name)
        assert function(stage) == said
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = protocols.nothing
