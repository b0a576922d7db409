"""What a request may ask for, and what of its prompt may be shared; without vLLM."""

import pytest

from foveate.errors import InvalidBudget, InvalidParameter, UnsupportedPolicy
from foveate.vllm.plans.boundaries import Boundaries
from foveate.vllm.plans.plans import REMEMBERED, Offer
from foveate.vllm.plans.rooms import Rooms
from foveate.vllm.plans.settings import settings_from
from foveate.vllm.plans.tiers import rooms_of

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
    assert [rooms.boundaries(plan.key).freed for plan in (plain, fast, half)] == [7, 8, 4]
    kept = 300 - 7 * BLOCK
    assert rooms.boundaries(plain.key) == Boundaries(300, kept, budget=kept, freed=7)


def test_a_context_ends_with_a_whole_block(settings):
    plan = Offer(settings).plan({"foveate_context": 200}, 300, BLOCK)
    assert (plan.length, plan.context) == (192, True)


def test_what_is_shared_holds_no_query_that_a_score_asks_for(settings):
    offer = Offer(settings)
    rooms = Rooms(rooms_of(settings.policies, 4, 2, 1024)[0], BLOCK)

    def decided(asked, length):
        plan = offer.plan(asked, length)
        return plan._replace(boundaries={2: rooms.boundaries(plan.key)})

    window, sums = decided(None, 300), decided({"foveate_policy": "sums"}, 300)
    assert (window.cacheable(2), window.readable(2)) == (7 * BLOCK, 7 * BLOCK)
    assert sums.readable(2) == 0  # it adds up what all queries pay
    short, long = decided(None, 40), decided({"foveate_budget": "100%"}, 300)
    assert (short.boundaries[2].freed, short.cacheable(2), short.readable(2)) == (0, 40, 40 - 8)
    assert (long.cacheable(2), long.readable(2)) == (300, 300 - 8)


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"foveate_policy": "slow"}, InvalidParameter, "snapkv.*fast, sums, full"),
        ({"foveate_buget": 5}, InvalidParameter, "Did you mean 'foveate_budget'"),
        ({"foveate_budget": "64MB"}, InvalidBudget, "no fixed batch"),
        ({"foveate_context": True}, InvalidParameter, "foveate_context=True"),
        ({"foveate_context": 32.0}, InvalidParameter, "foveate_context=32.0"),
        ({"foveate_budget": True}, InvalidBudget, "True is no amount"),
        ({"foveate_budget": ["30%"]}, InvalidParameter, "give one value"),
        ({"foveate_policy": ["fast"]}, InvalidParameter, "not served here"),
        ({"foveate_policy": 0}, InvalidParameter, "not served here"),
    ],
)
def test_what_cannot_be_is_said(settings, asked, error, said):
    with pytest.raises(error, match=said):
        Offer(settings).plan(asked, 300)


SPELLINGS = (  # of budgets, all that mean the same
    (9, "9", " 9 "),
    (1.0, "1.0", "100%", "1e2 %"),
    (0.3, "30%", "0.3", "0.30", "30.0 %"),
)


@pytest.mark.parametrize("turn", range(4))
def test_a_budget_is_what_it_says_whoever_asked_before(turn):
    """Python's 1 == 1.0 == True: none of them may be taken for another."""
    settings = settings_from({"foveate": {"policy": "knorm:budget=25%"}})
    offer, one = Offer(settings), [1, 1.0, "1", "100%"]
    for given in one[turn:] + one[:turn]:
        amount = offer.plan({"foveate_budget": given}, 300).policy.amount
        assert str(amount) == (
            "1" if given in (1, "1") and not isinstance(given, float) else "100%"
        )
    with pytest.raises(InvalidBudget, match="True is no amount"):
        offer.plan({"foveate_budget": True}, 300)
    for same in SPELLINGS:
        keys = {offer.plan({"foveate_budget": given}, 300).key for given in same}
        assert len(keys) == 1
    assert len({offer.plan({"foveate_budget": same[0]}, 300).key for same in SPELLINGS}) == 3


def test_what_clients_choose_is_not_remembered_for_ever(settings):
    offer = Offer(settings)
    rooms = Rooms(rooms_of(settings.policies, 4, 2, 1024)[0], BLOCK)
    first = offer.plan({"foveate_budget": 100}, 300)
    for budget in range(8, 3008):
        plan = offer.plan({"foveate_budget": budget}, 300)
        assert rooms.boundaries(plan.key).freed == max(0, 300 - budget) // BLOCK
    assert offer.policy.cache_info().currsize == REMEMBERED
    assert rooms._room.cache_info().currsize <= REMEMBERED
    assert rooms.boundaries.cache_info().currsize <= 4 * REMEMBERED
    assert offer.plan({"foveate_budget": 100}, 300) == first
    assert vars(offer).keys() == {"_settings", "policy"}


@pytest.mark.parametrize(
    ("policies", "error", "said"),
    [
        ("h2o:budget=20%", InvalidParameter, "give a list of specs"),
        ([5], InvalidParameter, "5 is no spec"),
        ({"full": "h2o:budget=20%"}, InvalidParameter, "names uncompressed prompts"),
        (["adakv:budget=20%"], UnsupportedPolicy, "each prompt's scores"),
    ],
)
def test_lists_of_policies_that_say_nothing_usable_are_refused(policies, error, said):
    with pytest.raises(error, match=said):
        settings_from({"foveate": {"policy": "knorm:budget=20%", "policies": policies}})
