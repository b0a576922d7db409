"""The oracle keeps what it says: both ends, the evidence of each row, and then what came last."""

import torch

import foveate
from foveate_lab.eval.oracle import oracle


def kept(budget: int, *places: tuple[int, ...], pads: int = 0) -> list[list[int]]:
    g = torch.Generator().manual_seed(0)
    rows, n = len(places), 40
    layer = tuple(torch.randn(rows, 2, n, 8, generator=g) for _ in range(3))
    mask = torch.ones(rows, n, dtype=torch.long)
    mask[0, :pads] = 0
    (found,) = foveate.compress_tensors(oracle(budget, *places), [layer], attention_mask=mask)
    return [found.positions(row, 1).tolist() for row in range(rows)]


def test_ends_evidence_and_then_the_latest_are_kept() -> None:
    ends = [0, 1, 2, 3, 36, 37, 38, 39]
    assert kept(13, (20, 9, 15)) == [sorted([*ends, 9, 15, 20, 34, 35])]


def test_where_room_is_short_the_first_of_the_evidence_stays() -> None:
    assert kept(10, (20, 9, 15)) == [[0, 1, 2, 3, 9, 15, 36, 37, 38, 39]]


def test_every_row_has_its_own_evidence_counted_without_its_padding() -> None:
    first, second = kept(10, (5, 6), (30, 31), pads=3)
    assert first == [3, 4, 5, 6, 8, 9, 36, 37, 38, 39]
    assert second == [0, 1, 2, 3, 30, 31, 36, 37, 38, 39]
