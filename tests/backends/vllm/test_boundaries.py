"""Where requests are compressed, and what they hold, against the rule written out token by token;
without vLLM.
"""

from itertools import islice, pairwise, product

import pytest

import foveate
from foveate.errors import InvalidParameter, UnsupportedEngine, UnsupportedPolicy
from foveate.vllm.plans.boundaries import NEVER, Boundaries, Every, Move
from foveate.vllm.plans.plans import Offer
from foveate.vllm.plans.rooms import Rooms
from foveate.vllm.plans.settings import check_policy, settings_from
from foveate.vllm.plans.tiers import room_of
from foveate.vllm.startup.engine_checks import check_engine

BLOCK, TOTAL = 4, 60
RULES = [NEVER, *(Every(n, *when) for n in (4, 12) for when in ((1, 0), (0, 1), (1, 1)))]


def by_rule(length, kept, every, within):
    """What ``OverBudget`` says once each token has come, and the prompt's end: where something
    leaves, and how much stays.
    """
    stored, ends = 0, []
    for seen in range(1, TOTAL + 1):
        stored += 1
        goes_on = every.tokens and (every.reading if seen < length else every.answering)
        stays = within if goes_on and seen < length else kept
        if seen == length or (goes_on and stored - stays >= every.tokens):
            ends += [(seen, stays)] if stored > stays else []
            stored = min(stored, stays)
    return ends


def every_case():
    """Prompts that leave whole blocks, those that just fit, and those that leave room."""
    for length, blocks, every, more in product(range(1, 40), range(6), RULES, range(BLOCK)):
        kept = length - blocks * BLOCK
        if kept <= 0:
            kept = length + 3 * blocks if every.answering else length
        wanted = max(1, kept - more) if kept <= length else kept
        within = -(-wanted // BLOCK) * BLOCK if every.reading else 0
        if not more or within != -(-kept // BLOCK) * BLOCK:
            yield Boundaries(length, kept, every, within)


def walked(boundaries, end):
    found = [0]
    while (following := boundaries.after(found[-1])) is not None and following <= end:
        found.append(following)
    return found[1:]


def test_requests_are_compressed_where_the_rule_says():
    for boundaries in every_case():
        ends = by_rule(*boundaries[:4])
        assert {end for end, _ in ends} <= set(walked(boundaries, TOTAL)), boundaries
        for seen in range(TOTAL):
            last, stays = max((one for one in ends if one[0] <= seen), default=(0, 0))
            assert boundaries.gap(seen, BLOCK) * BLOCK == last - stays, (boundaries, seen)


def test_within_prompts_boundaries_follow_from_what_comes_before_them():
    """Of prompts of any length, so that those that begin alike come to the same."""
    policy = foveate.policy("knorm:budget=7,when=over_budget(every=9,reading=true)")
    rooms = Rooms((room_of(policy),), BLOCK)
    for length in range(1, 100):
        boundaries = rooms.own(length)
        walk = [end for end in walked(boundaries, length) if end < length]
        assert walk == list(range(20, length, 12))
        for tokens in range(length + 3):
            assert list(boundaries.boundaries_within(tokens)) == [
                end for end in walk[::-1] if end <= tokens
            ]
        for end in walk:
            assert boundaries.kept_at(end) == 8


def test_a_step_moves_pairs_only_if_it_ends_at_a_boundary_where_blocks_become_free():
    for boundaries in islice(every_case(), 0, None, 7):
        freed = {end: (end - stays) // BLOCK for end, stays in by_rule(*boundaries[:4])}
        steps, before = [0, *walked(boundaries, TOTAL)], 0
        for start, boundary in pairwise(steps):
            first = max(before, freed.get(boundary, 0))
            expected = Move(first, boundary) if first > before else None
            for computed in (start, boundary - 1):
                assert boundaries.move(computed, boundary, BLOCK) == expected, boundaries
                assert boundaries.move(computed, boundary, BLOCK, last=boundary) is None
            for end in range(start + 1, boundary):
                assert boundaries.move(start, end, BLOCK) is None, (boundaries, end)
            before = first


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_no_request_holds_more_than_its_peak(ahead):
    """Steps end at boundaries, and what they read is freed once they are done, ``ahead`` later."""
    for boundaries in every_case():
        starts = sorted({0, boundaries.length, *walked(boundaries, TOTAL)})
        starts = [step for step in starts if step < boundaries.length]
        starts += range(boundaries.length, TOTAL)
        for total in (boundaries.length, TOTAL):
            steps = [step for step in starts if step < total] + [total]
            held = [
                end - boundaries.gap(steps[max(0, place + 1 - ahead)], BLOCK) * BLOCK
                for place, (_, end) in enumerate(pairwise(steps))
            ]
            peak = boundaries.peak(total, ahead)
            assert max(held) <= peak, (boundaries, total)
            assert ahead > 1 or peak <= max(held) + 1, (boundaries, total)


def test_what_is_remembered_is_never_moved_to():
    for boundaries in every_case():
        moved = [end - stays for end, stays in by_rule(*boundaries[:4])]
        assert boundaries.untouched == min([boundaries.length, *moved]), boundaries


def test_a_budget_of_tokens_is_the_answers_as_well():
    policy = foveate.policy("rkv:budget=40,every=9")
    short, long = (Rooms((room_of(policy),), BLOCK).own(length) for length in (10, 90))
    assert short == Boundaries(10, 40, Every(12, False, True), budget=40)
    assert long == Boundaries(90, 42, Every(12, False, True), budget=42, freed=12)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("h2o:budget=20%,when=over_budget(growing=true)", "not down to a fixed budget"),
        ("pyramidkv:budget=20%,when=over_budget", "layer by layer"),
        ("hermes:budget=20%", "layer by layer"),
        ("compactor:budget=20%,when=over_budget", "whose queries are gone"),
    ],
)
def test_what_cannot_compress_again_is_refused(spec, said):
    with pytest.raises(UnsupportedPolicy, match=said):
        check_policy(foveate.policy(spec))


AGAIN = "knorm:budget=64,when=over_budget(every=64)"


def test_settings_that_do_not_go_with_boundaries_are_named():
    from tests.backends.vllm.test_settings import engine

    plain, again = (foveate.policy(spec) for spec in ("knorm:budget=64", AGAIN))
    check_engine(engine(), [plain, again])
    for change, said in (({"disable_chunked_mm_input": True}, "--disable-chunked-mm-input"),):
        check_engine(engine(**change), [plain])
        with pytest.raises(UnsupportedEngine, match=f"over_budget.*{said}"):
            check_engine(engine(**change), [plain, again])


def test_contexts_are_none_where_what_is_kept_of_them_does_not_stay():
    offer = Offer(settings_from({"foveate": {"policy": AGAIN, "policies": ["knorm:budget=64"]}}))
    with pytest.raises(InvalidParameter, match="foveate_context=64 cannot be combined with knorm"):
        offer.plan({"foveate_context": 64}, 100)
    assert offer.plan({"foveate_context": 64, "foveate_policy": "knorm:budget=64"}, 100).context
