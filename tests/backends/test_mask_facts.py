"""What a mask says of a pass, whatever size it is compared in."""

import pytest
import torch

from foveate.hf.attention import masks
from foveate.hf.attention.masks import examine

M, N, PADS = 6, 9, torch.tensor([0, 4])
CPU = torch.device("cpu")


def causal() -> torch.Tensor:
    """Of the last queries; row 1 has four columns of padding, where its first query stands."""
    columns = torch.arange(N)
    seen = columns <= columns[N - M :, None]
    return (seen & (columns >= PADS[:, None, None]))[:, None]


@pytest.fixture(autouse=True, params=[1, 2 * N * 4, masks.BLOCK], ids=["row", "blocks", "whole"])
def block(request, monkeypatch):
    """A query at a time, four of them, of which two are left over, or all."""
    monkeypatch.setattr(masks, "BLOCK", request.param)


def test_a_causal_mask_is_told_by_its_padding() -> None:
    for mask in (causal(), torch.zeros(2, 1, M, N).masked_fill(~causal(), -torch.inf)):
        facts = examine(mask, None, (2, M, N), CPU)
        assert facts.pads.tolist() == PADS.tolist()
        assert facts.causal
        assert facts.open


@pytest.mark.parametrize("query", [1, 3, 5])
@pytest.mark.parametrize("change", ["hidden", "ahead"])
def test_one_entry_that_differs_is_found(query: int, change: str) -> None:
    mask, known = causal(), PADS
    column = N - M + query if change == "hidden" else N - 1
    mask[1, 0, query, column] = not mask[1, 0, query, column]
    facts = examine(mask, known, (2, M, N), CPU)
    assert not facts.causal
    assert facts.open == (query < M - 1)


def test_what_padding_sees_does_not_matter() -> None:
    mask = causal()
    mask[1, 0, 0] = True
    assert examine(mask, PADS, (2, M, N), CPU).causal


def test_without_a_mask_every_query_sees_all_before_it() -> None:
    for pads, found in ((PADS, PADS.tolist()), (None, [0, 0])):
        facts = examine(None, pads, (2, M, N), CPU)
        assert facts.pads.tolist() == found
        assert facts.causal
        assert facts.open
