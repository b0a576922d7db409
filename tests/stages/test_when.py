"""When a layer is compressed, and what stays while decoding."""

import pytest
import torch

from foveate.errors import InvalidParameter
from foveate.policies.protocols import AfterPrefill, Moment
from foveate.policies.spec import make_stage
from foveate.stages.when import AnswerBudget, FixedSlot, OverBudget


def moment(stored, *, prompt=False, seen=(100,), length=(90,), kept=((10,),)):
    return Moment(prompt, *(torch.tensor(x) for x in (stored, seen, length, kept)))


def test_after_prefill_is_once_when_the_prompt_is_complete():
    rule = AfterPrefill()
    assert not rule.decodes
    assert rule(moment([[3]], prompt=True))
    assert not rule(moment([[1000]]))


@pytest.mark.parametrize("every", [1, 3])
def test_over_budget_is_whenever_so_many_pairs_came_since(every):
    rule = OverBudget(every=every)
    assert rule.decodes
    assert rule(moment([[3]], prompt=True))
    asked = [stored for stored in range(8, 16) if rule(moment([[stored]]))]
    assert asked == list(range(10 + every, 16))


def test_over_budget_looks_at_what_each_head_kept():
    assert not OverBudget()(moment([[3, 30]], kept=[[3, 30]]))
    assert OverBudget()(moment([[3, 31]], kept=[[3, 30]]))


@pytest.mark.parametrize("every", [0, -2])
def test_a_period_of_no_token_is_refused(every):
    with pytest.raises(InvalidParameter, match=f"every={every}"):
        OverBudget(every=every)
    with pytest.raises(InvalidParameter, match=f"every={every}"):
        FixedSlot(every=every)


def test_a_fixed_slot_in_front_of_the_cache_is_refused():
    with pytest.raises(InvalidParameter, match="distance=0"):
        FixedSlot(distance=0)
    with pytest.raises(InvalidParameter, match="counted_from='end'"):
        make_stage("fixed_slot", {"counted_from": "end"})


def decode(rule, length, kept, steps):
    """Slots, named by their token, that one head holds after each step, one pair at a time."""
    held, history = list(kept), []
    for step in range(1, steps + 1):
        held.append(length + step - 1)
        now = moment([[len(held)]], seen=[length + step], length=[length], kept=[[len(kept)]])
        if rule(now):
            keeps = rule.keeps(now, slots=len(held) + 3)[0, 0].tolist()
            assert all(keeps[:3])  # the empty slots in front are not this rule's business
            held = [token for token, stays in zip(held, keeps[3:], strict=True) if stays]
        history.append(held)
        held = list(held)
    return history


@pytest.mark.parametrize("counted_from", ["prompt", "newest"])
@pytest.mark.parametrize(("length", "kept"), [(60, 30), (60, 7), (61, 60), (100, 1)])
def test_a_head_holds_its_share_of_the_tokens_seen_and_less_than_one_pair_more(
    length, kept, counted_from
):
    tokens = list(range(0, length, length // kept))[:kept]
    history = decode(FixedSlot(distance=5, counted_from=counted_from), length, tokens, 50)
    for step, held in enumerate(history, start=1):
        share = (length + step) * kept / length
        assert share - 1e-9 <= len(held) < share + 1


def test_the_slot_before_the_prompts_end_is_the_one_that_empties():
    (held,) = decode(FixedSlot(distance=4), 60, range(10), 2)[1:]
    assert held == [0, 1, 2, 3, 4, 5, 7, 8, 9, 60, 61]


def test_half_of_a_prompt_that_is_shorter_than_the_distance_stands_before_the_slot():
    (held,) = decode(FixedSlot(distance=25), 60, range(10), 2)[1:]
    assert held == [0, 1, 2, 3, 4, 6, 7, 8, 9, 60, 61]


def test_counted_from_the_newest_pair_the_kept_prompt_stays_whole_in_the_long_run():
    history = decode(FixedSlot(distance=3, counted_from="newest"), 60, range(30), 40)
    assert set(range(28)) <= set(history[-1])
    assert history[-1][-3:] == [97, 98, 99]


def test_a_surplus_of_several_pairs_leaves_in_one_piece():
    late = decode(FixedSlot(distance=5, every=4), 60, range(10), 8)
    assert [len(held) for held in late] == [11, 12, 13, 14, 11, 12, 13, 14]
    assert late[4][:9] == [0, 1, 2, 3, 4, 9, 60, 61, 62]


@pytest.mark.parametrize("counted_from", ["prompt", "newest"])
@pytest.mark.parametrize("every", [1, 3])
def test_in_plain_numbers_the_same_pairs_leave(counted_from, every):
    rule = FixedSlot(distance=5, counted_from=counted_from, every=every)
    for kept in (1, 4, 5, 6, 30, 60):
        for more in range(1, 9):
            for seen in range(61, 61 + 2 * more):
                stored = kept + more
                now = moment([[stored]], seen=[seen], length=[60], kept=[[kept]])
                left = (~rule.keeps(now, slots=stored)[0, 0]).nonzero().flatten().tolist()
                assert list(rule.leave(stored, seen, 60, kept)) == left


@pytest.mark.parametrize("by", ["random", "age"])
@pytest.mark.parametrize("every", [1, 3])
def test_the_answer_has_a_budget_of_its_own_and_the_prompt_stays(by, every):
    rule = AnswerBudget(tokens=6, recent=2, by=by, every=every)
    history = decode(rule, 60, range(10), 40)
    for step, held in enumerate(history, start=1):
        assert held[:10] == list(range(10))
        assert len(held) - 10 <= 6 + every - 1
        assert held[-min(2, step) :] == [60 + i for i in range(max(0, step - 2), step)]
    if by == "age" and every == 1:
        assert history[-1][10:] == list(range(94, 100))


def test_a_lot_falls_on_every_free_token_of_the_answer_alike():
    drawn = torch.zeros(9)
    for seed in range(2000):
        now = moment([[14]], seen=[69], length=[60], kept=[[5]])
        drawn += ~AnswerBudget(tokens=8, recent=2, seed=seed).keeps(now, slots=14)[0, 0, 5:]
    assert drawn[-2:].sum() == 0
    assert torch.allclose(drawn[:-2] / 2000, torch.full((7,), 1 / 7), atol=0.035)


def test_a_budget_that_its_newest_tokens_fill_is_refused():
    with pytest.raises(InvalidParameter, match="recent=32 leaves nothing of tokens=32"):
        AnswerBudget(tokens=32)
