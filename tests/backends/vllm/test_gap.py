"""The gap layout against a pool written out slot by slot, for all small sizes; without vLLM."""

import copy
import pickle
from fractions import Fraction

import pytest
import torch

from foveate.errors import InvalidBudget
from foveate.policies.amount import Amount
from foveate.vllm.plans.gap import Room, kept_slots, physical, view

BLOCKS = (1, 3, 4, 16)
BUDGETS = ("1%", "20%", "25%", "33.3%", "99%", "100%", 1, 3, 8, 1000)


def rooms(least=1):
    return [Room.of(Amount.of(budget), least) for budget in BUDGETS]


def every_case():
    return [
        (room, prompt, block)
        for least in (1, 5)
        for room in rooms(least)
        for block in BLOCKS
        for prompt in range(1, 40)
    ]


def test_kept_count_is_the_least_above_the_budget_that_frees_whole_blocks():
    for room, prompt, block in every_case():
        wanted = min(prompt, room.target(prompt))
        possible = [
            count
            for count in range(wanted, prompt + 1)
            if count >= 1 and (prompt - count) % block == 0
        ]
        assert room.kept(prompt, block) == min(possible), (room, prompt, block)


@pytest.mark.parametrize("budget", BUDGETS)
def test_wanted_tokens_are_those_of_the_budget_elsewhere(budget):
    amount, lengths = Amount.of(budget), torch.arange(1, 300)
    room = Room.of(amount, least=1)
    assert [room.target(n) for n in lengths.tolist()] == amount.tokens(lengths, 1).tolist()


def test_gap_frees_only_blocks_that_are_all_prompt():
    for room, prompt, block in every_case():
        gap = room.gap(prompt, block)
        assert 0 <= gap <= prompt // block


def test_kept_slots_are_exactly_the_prompts_slots_outside_the_gap():
    for room, prompt, block in every_case():
        gap = room.gap(prompt, block)
        outside = [s for s in range(prompt) if s // block >= gap]
        assert kept_slots(gap, prompt, block).tolist() == outside
        assert len(outside) == room.kept(prompt, block)


def test_attention_sees_the_kept_tokens_and_then_the_answer():
    """A pool of numbers: the prompt's kept tokens are moved, the gap's blocks are overwritten by
    someone else, the answer is appended at its own slots; the view reads kept tokens and answer.
    """
    random = torch.Generator().manual_seed(0)
    for room, prompt, block in every_case()[::7]:
        answer = 1 + prompt % (2 * block)
        width = -(-(prompt + answer) // block)
        table = torch.randperm(4 * width, generator=random)[:width].int()
        pool = torch.full((4 * width * block,), -1)
        slot = lambda i: int(table[i // block]) * block + i % block  # noqa: B023, E731
        for i in range(prompt):
            pool[slot(i)] = i
        gap, kept = room.gap(prompt, block), room.kept(prompt, block)
        chosen = torch.randperm(prompt, generator=random)[:kept].sort().values
        pool[physical(kept_slots(gap, prompt, block), table, block)] = chosen
        for column in range(gap):
            start = int(table[column]) * block
            pool[start : start + block] = -7  # another request's
        for i in range(prompt, prompt + answer):
            pool[slot(i)] = i
        seen, lengths = view(table[None], torch.tensor([prompt + answer]), [gap], block)
        read = physical(torch.arange(int(lengths[0])), seen[0], block)
        assert pool[read].tolist() == [*chosen.tolist(), *range(prompt, prompt + answer)]


def test_view_leaves_rows_without_a_gap_and_its_input_alone():
    table = torch.arange(12, dtype=torch.int32).view(3, 4)
    lengths = torch.tensor([9, 14, 3], dtype=torch.int32)
    before = table.clone(), lengths.clone()
    seen, short = view(table, lengths, [0, 2, 0], 4)
    assert seen[0].tolist() == table[0].tolist()
    assert seen[1, :2].tolist() == [6, 7]
    assert seen[2].tolist() == table[2].tolist()
    assert short.tolist() == [9, 6, 3]
    assert (seen.dtype, short.dtype) == (torch.int32, torch.int32)
    assert torch.equal(table, before[0])
    assert torch.equal(lengths, before[1])


def test_prompts_shorter_than_the_budget_have_no_gap():
    for room in rooms(least=40):
        assert all(room.gap(prompt, 4) == 0 for prompt in range(41))


def test_a_budget_in_bytes_is_refused():
    with pytest.raises(InvalidBudget, match="64MB"):
        Room.of(Amount.of("64MB"), 1)


def test_rooms_travel_between_processes_and_compare_by_value():
    room = Room.of(Amount.of("20%"), 8)
    assert room.share == Fraction(1, 5)
    assert pickle.loads(pickle.dumps(room)) == room == copy.deepcopy(room)
    assert hash(room) == hash(Room.of(Amount.of(0.2), 8))
    assert room != Room.of(Amount.of("20%"), 9)
