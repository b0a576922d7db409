"""What a request may ask for, and what of its prompt may be shared; without vLLM."""

import pytest

from foveate.backends.vllm.plans import Offer, Rooms
from foveate.backends.vllm.settings import settings_from
from foveate.backends.vllm.tiers import rooms_of
from foveate.errors import InvalidBudget, InvalidParameter, UnsupportedPolicy

BLOCK = 32
NAMED = {"fast": "snapkv:budget=10%,window=8", "sums": "h2o:budget=20%"}


@pytest.fixture
def settings():
    return settings_from({"foveate": {"policy": "snapkv:budget=25%,window=8", "policies": NAMED}})


def test_a_request_chooses_by_name_and_budget(settings):
    offer = Offer(settings)
    plain, fast = offer.plan(None, 300), offer.plan({"foveate_policy": "fast", "other": 1}, 300)
    half = offer.plan({"foveate_budget": "50%"}, 300)
    assert str(plain.policy) == "snapkv:budget=25%,window=8"
    assert (fast.chosen, str(fast.policy)) == (1, NAMED["fast"])
    assert str(half.policy) == "snapkv:budget=50%,window=8"
    assert offer.plan({"foveate_policy": "full"}, 300).key is None
    rooms = Rooms(rooms_of(settings.policies, 4, 2, 1024)[0], BLOCK)
    assert [rooms.gap(plan) for plan in (plain, fast, half)] == [7, 8, 4]
    assert rooms.kept(plain) == 300 - 7 * BLOCK
    assert rooms.gap(offer.plan({"foveate_policy": "full"}, 300)) == 0


def test_a_context_ends_with_a_whole_block(settings):
    plan = Offer(settings).plan({"foveate_context": 200}, 300, BLOCK)
    assert (plan.length, plan.context) == (192, True)


def test_what_is_shared_holds_no_query_that_a_score_asks_for(settings):
    offer = Offer(settings)
    rooms = Rooms(rooms_of(settings.policies, 4, 2, 1024)[0], BLOCK)
    window, sums = offer.plan(None, 300), offer.plan({"foveate_policy": "sums"}, 300)
    assert (rooms.shared(window), window.unasked(76)) == (7 * BLOCK, 300 - 8)
    assert sums.unasked(60) == 0  # it adds up what all queries pay
    short = offer.plan(None, 8)
    assert (rooms.gap(short), rooms.shared(short)) == (0, 8)


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"foveate_policy": "slow"}, InvalidParameter, "snapkv.*fast, sums, full"),
        ({"foveate_buget": 5}, InvalidParameter, "Did you mean 'foveate_budget'"),
        ({"foveate_budget": "64MB"}, InvalidBudget, "no fixed batch"),
        ({"foveate_context": True}, InvalidParameter, "foveate_context=True"),
    ],
)
def test_what_cannot_be_is_said(settings, asked, error, said):
    with pytest.raises(error, match=said):
        Offer(settings).plan(asked, 300)


@pytest.mark.parametrize(
    ("policies", "error", "said"),
    [
        ("h2o:budget=20%", InvalidParameter, "give a list of specs"),
        ([5], InvalidParameter, "5 is no spec"),
        ({"full": "h2o:budget=20%"}, InvalidParameter, "kept whole"),
        (["adakv:budget=20%"], UnsupportedPolicy, "each prompt's scores"),
    ],
)
def test_lists_of_policies_that_say_nothing_usable_are_refused(policies, error, said):
    with pytest.raises(error, match=said):
        settings_from({"foveate": {"policy": "knorm:budget=20%", "policies": policies}})
