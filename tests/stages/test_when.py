"""When a layer is compressed."""

import pytest

from foveate.core.errors import InvalidParameter
from foveate.core.policy import AfterPrefill, Moment
from foveate.stages.when import OverBudget


def test_after_prefill_is_once_when_the_prompt_is_complete():
    rule = AfterPrefill()
    assert not rule.decodes
    assert rule(Moment(prompt=True, stored=3, tokens=10))
    assert not rule(Moment(prompt=False, stored=1000, tokens=10))


@pytest.mark.parametrize("every", [1, 3])
def test_over_budget_is_whenever_so_many_pairs_are_too_many(every):
    rule = OverBudget(every=every)
    assert rule.decodes
    assert rule(Moment(prompt=True, stored=3, tokens=10))
    asked = [stored for stored in range(8, 16) if rule(Moment(False, stored, 10))]
    assert asked == list(range(10 + every, 16))


@pytest.mark.parametrize("every", [0, -2])
def test_a_period_of_no_token_is_refused(every):
    with pytest.raises(InvalidParameter, match=f"every={every}"):
        OverBudget(every=every)
