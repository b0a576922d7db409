"""The table of tokens: what passes add, rows and columns taken out, and columns that come back."""

from __future__ import annotations

import torch
from torch import Tensor

from foveate.cache.tokens import Tokens

VISION = torch.tensor([[0, 1, 1, 0, 1, 1, 0], [0, 0, 1, 1, 1, 0, 0]]).bool()
FRAME = torch.tensor([[0, 1, 0, 0, 1, 1, 0], [0, 0, 1, 0, 1, 0, 0]]).bool()


def table() -> Tokens:
    """One that knows something in every column."""
    return Tokens(
        vision=VISION,
        frame=FRAME,
        image=torch.arange(14).view(2, 7),
        slot=torch.arange(14).view(2, 7) + 20,
        position=torch.arange(21).view(3, 7),
        pad=torch.tensor([0, 2]),
        dropped={1: VISION & ~FRAME},
        extras={"ahead": torch.tensor([[3], [5]]), "none": None},
    )


def by_row(tokens: Tokens) -> list[Tensor]:
    """Every tensor that has a row for each row of the batch."""
    own = [tokens.vision, tokens.frame, tokens.image, tokens.slot, tokens.pad]
    return [t for t in (*own, *tokens.dropped.values(), tokens.extras["ahead"]) if t is not None]


def test_two_passes_say_what_one_does() -> None:
    whole = Tokens().extend(VISION, FRAME)
    parts = Tokens().extend(VISION[:, :3], FRAME[:, :3]).extend(VISION[:, 3:], FRAME[:, 3:])
    assert all(map(torch.equal, whole.images, parts.images))
    assert whole.images[0].tolist()[0] == [-1, 0, 0, -1, 1, 2, -1]
    assert whole.images[1].tolist()[1] == [-1, -1, 0, 1, 0, -1, -1]


def test_a_pass_that_says_nothing_leaves_nothing_known() -> None:
    assert Tokens().images is None
    known = Tokens().extend(VISION)
    assert known.extend(None).images is None
    assert known.extend(None).extend(VISION).seen_visual is None
    assert known.images is not None


def test_where_images_are_given_later_passes_are_text() -> None:
    none = torch.empty(2, 0, dtype=torch.long)
    told = Tokens(image=none, slot=none).extend(VISION, None, (VISION * 4, VISION * 5))
    image, slot = told.extend(VISION).images
    assert torch.equal(image[:, :7], VISION * 4)
    assert (image[:, 7:] == -1).all()
    assert (slot[:, 7:] == -1).all()


def test_every_column_follows_the_rows() -> None:
    rows = torch.tensor([1, 0, 1])
    for before, after in zip(by_row(table()), by_row(table().rows(rows)), strict=True):
        assert torch.equal(after, before[rows])
    once = table()._replace(extras={"ahead": torch.tensor([[3]])})
    assert once.rows(rows).extras["ahead"].tolist() == [[3]]  # of all rows


def test_columns_leave_and_come_back() -> None:
    tokens = table().rows(torch.tensor([0]))
    held = torch.tensor([1, 0, 0, 1, 1, 0, 1]).bool()
    left = tokens.drop(held)
    assert left.vision.tolist() == [[False, False, True, False]]
    assert left.position[0].tolist() == [0, 3, 4, 6]
    assert left.dropped_before(2, 4).tolist() == tokens.dropped[1][:, held].tolist()
    assert left.dropped_before(0, 4) is None
    assert (left.forgotten, left.shift, left.extras["ahead"].tolist()) == (3, 3, [[6]])

    own, new = torch.tensor([0, 3, 4, 5]), torch.tensor([1, 2])
    back = left.concat((tokens.image[0, 1:3][None], tokens.slot[0, 1:3][None]), own, new)
    assert back.image.tolist() == [[0, 1, 2, 3, 4, 6]]
    assert back.vision.tolist() == [[False, True, True, False, True, False]]
    assert back.position is None
    assert (back.forgotten, back.extras["ahead"].tolist()) == (1, [[4]])


def test_nothing_is_written_to() -> None:
    tokens = table()
    before = [t.clone() for t in by_row(tokens)]
    tokens.extend(VISION, FRAME).rows(torch.tensor([1])).drop(torch.ones(14).bool())
    tokens.drop_before(1, VISION).note({"ahead": None}).add_positions(
        torch.zeros(3, 2, dtype=torch.long)
    )
    assert all(map(torch.equal, before, by_row(tokens)))
    assert len(tokens.dropped) == 1
