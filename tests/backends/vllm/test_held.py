"""A worker's books of blocks, against which it checks every move that the scheduler orders; without
vLLM.
"""

from types import SimpleNamespace

import pytest

from foveate.vllm.plans.books import RequestBooks
from foveate.vllm.plans.boundaries import Move
from foveate.vllm.plans.orders import Orders

BLOCK, NAME, GROUP = 16, "a", 0
FOUND = 192  # tokens behind which the request starts


@pytest.fixture
def books():
    """Books of a request that starts behind a copy of what another has kept at a boundary, with 12
    blocks, 4 of them gone.

    It keeps 192 pairs and is compressed every 64 tokens.
    """
    books = RequestBooks()
    step(books, FOUND, Orders(starts={NAME: 1}, first_blocks={NAME: {GROUP: 4}}), new=True)
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


def ordered(first, end):
    """Orders of a move."""
    return Orders(moves={NAME: {GROUP: Move(first, end)}})


def refusal(books, first, end):
    expected = None if first is None else Move(first, end)
    return books.moves(NAME, GROUP, expected, BLOCK)


def test_a_move_is_made_only_if_tokens_and_order_agree(books):
    assert books.reads(NAME, GROUP, 4, 224, BLOCK) is None
    assert refusal(books, None, None) is None
    assert refusal(books, 8, 256) == (
        "its tokens mean a move into the blocks from 8 on, at token 256, and its order no move"
    )
    step(books, 224, ordered(8, 256))
    assert refusal(books, 8, 256) is None
    assert "its tokens mean no move" in refusal(books, None, None)
    assert "from 9 on" in refusal(books, 9, 256)
    step(books, 256, Orders())
    assert refusal(books, None, None) is None


@pytest.mark.parametrize("shared", [True, False])
def test_a_move_into_a_block_that_others_read_is_refused(shared):
    """Blocks of vLLM's prefix cache are other requests' as well; copies are not."""
    books = RequestBooks()
    starts = {} if shared else {NAME: 1}
    step(books, FOUND, Orders(starts=starts, first_blocks={NAME: {GROUP: 4}}), new=True)
    step(books, 224, ordered(11, 256))
    refused = refusal(books, 11, 256)
    assert "others may read its block 11" in refused if shared else refused is None
    step(books, 288, ordered(12, 320))
    assert refusal(books, 12, 320) is None


def test_only_blocks_that_the_scheduler_holds_are_read(books):
    assert "block 3 would be read" in books.reads(NAME, GROUP, 3, 224, BLOCK)
    assert "225 tokens would be read from blocks for 224" in books.reads(NAME, GROUP, 4, 225, BLOCK)
    assert "no blocks" in books.reads("b", GROUP, 0, 1, BLOCK)
