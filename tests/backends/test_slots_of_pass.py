"""Positions and images of a pass, worked out once for the layers that hold every column."""

import torch

import foveate
from foveate.cache.tokens import Tokens
from foveate.hf.attention.masks import MaskFacts, slots_of
from foveate.hf.layer.state import CacheState, Link

PADS = torch.tensor([0, 2])
IMAGE = torch.tensor([[-1, 0, 0, 1, -1, -1], [-1, -1, -1, 0, 0, -1]])
SPOT = torch.tensor([[-1, 0, 1, 0, -1, -1], [-1, -1, -1, 0, 1, -1]])


def facts() -> MaskFacts:
    return MaskFacts(PADS, True, True)


def columns(heads: int, held: int = 5) -> torch.Tensor:
    return torch.arange(held).expand(2, heads, held)


def test_positions_count_from_each_rows_first_token() -> None:
    found = slots_of(columns(3), False, (3, 5), facts(), (IMAGE, SPOT), None)
    assert found.pos[:, 1].tolist() == [[0, 1, 2, 3, 4], [-2, -1, 0, 1, 2]]
    assert found.q_pos.tolist() == [[3, 4], [1, 2]]
    assert torch.equal(found.image[:, 2], IMAGE[:, :5])
    assert torch.equal(found.spot[:, 0], SPOT[:, :5])
    assert torch.equal(found.q_image, IMAGE[:, 3:5])


def test_slots_of_a_compressed_layer_are_looked_up() -> None:
    kept = torch.tensor([[[-1, 1, 3]], [[2, 4, 5]]])
    found = slots_of(kept, True, (5, 6), facts(), (IMAGE, SPOT), None)
    assert found.pos.tolist() == [[[-1, 1, 3]], [[0, 2, 3]]]
    assert found.image.tolist() == [[[-1, 0, 1]], [[-1, 0, -1]]]
    assert found.spot.tolist() == [[[-1, 0, 0]], [[-1, 1, -1]]]


def test_layers_alike_share_what_was_worked_out() -> None:
    state = CacheState(foveate.policy("snapkv:budget=3"), Link(), 2)
    state.tokens = Tokens(image=IMAGE, slot=SPOT, pad=PADS)
    view = state.look(None, 2, 1, 5, torch.device("cpu"))
    assert state.look(None, 2, 1, 5, torch.device("cpu")) is view
    three, one = torch.zeros(2, 3, 5, 4), torch.zeros(2, 1, 5, 4)
    held = state.columns(three)
    assert torch.equal(held, columns(3))
    first = state.slots(held, view, 1)
    assert state.slots(state.columns(three + 1), view, 1) is first
    fewer = state.slots(state.columns(one), view, 1)
    assert fewer.pos.shape == (2, 1, 5)
    later = state.slots(state.columns(one), state.look(None, 2, 2, 5, torch.device("cpu")), 2)
    assert later is not fewer
    assert state.columns(one[:, :, :4]).shape == (2, 1, 4)
