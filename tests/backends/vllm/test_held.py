"""A worker's books of blocks, against which it checks every move that the scheduler orders; without
vLLM.
"""

from types import SimpleNamespace

import pytest

from foveate.vllm.plans.held import RequestBooks
from foveate.vllm.plans.moves import Move, Replacement
from foveate.vllm.plans.orders import Orders

BLOCK, NAME, GROUP = 16, "a", 0
FOUND = 192  # tokens of another request behind which this one starts


@pytest.fixture
def books():
    """Books of a request that starts at a boundary which it shares, with 12 blocks, 4 of them gone.

    It keeps 192 pairs and is compressed every 64 tokens.
    """
    books = RequestBooks()
    step(books, FOUND, Orders(holds={NAME: {GROUP: 4}}), new=True)
    return books


def step(books, computed, orders, new=False, tokens=32):
    """Announce a step that reads so many tokens of the request, into two more blocks."""
    first = SimpleNamespace(req_id=NAME, num_computed_tokens=computed, block_ids=([1] * 14,))
    old = {"req_ids": [], "num_computed_tokens": [], "new_block_ids": []}
    if not new:
        old = {"req_ids": [NAME], "num_computed_tokens": [computed], "new_block_ids": [([1, 2],)]}
    output = SimpleNamespace(
        finished_req_ids=set(),
        scheduled_new_reqs=[first] if new else [],
        scheduled_cached_reqs=SimpleNamespace(**old, resumed_req_ids=set()),
        num_scheduled_tokens={NAME: tokens},
    )
    books.learn(output, orders)


def ordered(first, end, replaced=(), saves=False):
    """Orders of a move in which these places get other blocks, and maybe of a snapshot after it."""
    blocks = {place: Replacement(place, 100 + place) for place in replaced}
    number = {NAME: 1} if saves else {}
    return Orders(saves=number, moves={NAME: {GROUP: Move(first, end, blocks)}})


def refusal(books, first, end):
    expected = None if first is None else Move(first, end)
    return books.moves(NAME, GROUP, expected, BLOCK)


def test_passes_before_a_boundary_may_read_what_others_read_too(books):
    assert books.reads(NAME, GROUP, 4, 224, BLOCK) is None
    assert refusal(books, None, None) is None


def test_a_move_is_made_only_if_tokens_and_order_agree(books):
    assert refusal(books, 8, 256) == (
        "its tokens mean a move into the blocks from 8 on, at token 256, and its order no move"
    )
    step(books, 224, ordered(8, 256, replaced=range(8, 12)))
    assert refusal(books, 8, 256) is None
    assert "its tokens mean no move" in refusal(books, None, None)
    assert "from 9 on" in refusal(books, 9, 256)
    step(books, 256, Orders())
    assert refusal(books, None, None) is None
    assert books.still_read(NAME, GROUP) == {}


def test_a_move_into_a_block_that_others_read_is_refused(books):
    step(books, 224, ordered(8, 256, replaced=[8, 9, 11]))
    assert "others may read its block 10" in refusal(books, 8, 256)
    assert books.still_read(NAME, GROUP) == {8: 8, 9: 9, 11: 11}
    assert books.own(NAME, GROUP) == {8: 108, 9: 109, 11: 111}


def test_replaced_blocks_stay_private_until_a_snapshot_shares_them(books):
    """Without a snapshot the next move may write to them; after one it needs other blocks."""
    step(books, 224, ordered(4, 256, replaced=range(4, 12)))
    step(books, 288, ordered(8, 320))
    assert refusal(books, 8, 320) is None
    step(books, 352, ordered(12, 384, saves=True))
    step(books, 416, ordered(16, 448, replaced=range(16, 23)))
    assert "others may read its block 23" in refusal(books, 16, 448)


def test_only_blocks_that_the_scheduler_holds_are_read(books):
    assert "block 3 would be read" in books.reads(NAME, GROUP, 3, 224, BLOCK)
    assert "225 tokens would be read from blocks for 224" in books.reads(NAME, GROUP, 4, 225, BLOCK)
    assert "no blocks" in books.reads("b", GROUP, 0, 1, BLOCK)
