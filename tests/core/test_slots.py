"""What follows from the slots of a pass is worked out once, and never taken for another's."""

from dataclasses import replace

import pytest
import torch

from foveate.cache.slots import Slots, derived
from foveate.errors import MissingModality
from foveate.stages.recent import is_recent


def slots_of(tokens: int = 6, late: int = 6, **facts) -> Slots:
    pos = torch.arange(tokens).expand(1, 2, tokens)
    return Slots(pos=pos, q_pos=pos[:, 0, tokens - late :], **facts)


def marked(t):
    return t[0, 0].tolist()


def test_it_is_worked_out_once():
    slots = slots_of()
    assert slots.last_visible(2) is slots.last_visible(2)
    assert is_recent(slots, 2) is is_recent(slots, 2)
    assert slots.lengths is slots.lengths
    assert slots.valid is slots.valid


def test_other_arguments_queries_and_budgets_are_told_apart():
    slots = slots_of()
    assert marked(slots.last_visible(2)) == [[False], [True]]
    assert marked(is_recent(slots, 2)) == [False] * 4 + [True] * 2
    early = replace(slots, q_pos=slots.q_pos[:, :4])
    assert marked(early.last_visible(2)) == [[False] * 3, [True, False, False]]
    assert marked(is_recent(early, 2)) == [False] * 2 + [True] * 4
    for tokens, recent in ((2, 1), (4, 2)):
        budgeted = slots.with_budget(torch.tensor([tokens]))
        assert marked(is_recent(budgeted, 0.5)) == [False] * (6 - recent) + [True] * recent


def test_equal_numbers_of_other_types_are_other_arguments():
    seen = []
    slots = slots_of()

    @derived
    def rule(slots, argument):
        seen.append(argument)
        return argument

    assert [rule(slots, a) for a in (1, 1.0, True, 1)] == [1, 1.0, True, 1]
    assert [type(a) for a in seen] == [int, float, bool]


def test_a_changed_copy_takes_nothing_along():
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    mask[..., 4, 1] = False
    masked = slots_of(mask=mask)
    assert masked.last_visible(2).shape[-1] == 5
    assert replace(masked, mask=torch.ones_like(mask)).last_visible(2).shape[-1] == 0
    last = masked.from_query(5)
    assert last.q_pos.tolist() == [[5]]
    assert torch.equal(last.mask, mask[:, :, 5:])


def test_what_nothing_told_is_asked_for_by_name():
    with pytest.raises(MissingModality, match="vision="):
        _ = slots_of().vision
