"""Positions and images of a pass, worked out once for the layers that hold every column."""

import torch

from foveate.hf.attention.masks import MaskFacts
from foveate.hf.layer.shared import SharedByLayers

PADS = torch.tensor([0, 2])
IMAGE = torch.tensor([[-1, 0, 0, 1, -1, -1], [-1, -1, -1, 0, 0, -1]])
SPOT = torch.tensor([[-1, 0, 1, 0, -1, -1], [-1, -1, -1, 0, 1, -1]])


def facts() -> MaskFacts:
    return MaskFacts(PADS, True, True)


def columns(heads: int, held: int = 5) -> torch.Tensor:
    return torch.arange(held).expand(2, heads, held)


def test_positions_count_from_each_rows_first_token() -> None:
    found = SharedByLayers().slots(columns(3), (3, 5), facts(), (IMAGE, SPOT), None)
    assert found.pos[:, 1].tolist() == [[0, 1, 2, 3, 4], [-2, -1, 0, 1, 2]]
    assert found.q_pos.tolist() == [[3, 4], [1, 2]]
    assert torch.equal(found.image[:, 2], IMAGE[:, :5])
    assert torch.equal(found.spot[:, 0], SPOT[:, :5])
    assert torch.equal(found.q_image, IMAGE[:, 3:5])


def test_slots_of_a_compressed_layer_are_looked_up() -> None:
    kept = torch.tensor([[[-1, 1, 3]], [[2, 4, 5]]])
    found = SharedByLayers().slots(kept, (5, 6), facts(), (IMAGE, SPOT), None)
    assert found.pos.tolist() == [[[-1, 1, 3]], [[0, 2, 3]]]
    assert found.image.tolist() == [[[-1, 0, 1]], [[-1, 0, -1]]]
    assert found.spot.tolist() == [[[-1, 0, 0]], [[-1, 1, -1]]]


def test_layers_alike_share_what_was_worked_out() -> None:
    shared, of_pass, images = SharedByLayers(), facts(), (IMAGE, SPOT)
    three, one, span = torch.zeros(2, 3, 5, 4), torch.zeros(2, 1, 5, 4), (4, 5)
    held = shared.columns(three)
    assert torch.equal(held, columns(3))
    first = shared.slots(held, span, of_pass, images, None)
    assert shared.slots(shared.columns(three + 1), span, of_pass, images, None) is first
    fewer = shared.slots(shared.columns(one), span, of_pass, images, None)
    assert fewer.pos.shape == (2, 1, 5)
    later = shared.slots(shared.columns(one), span, facts(), images, None)
    assert later is not fewer
    assert shared.slots(shared.columns(one), span, of_pass, None, None).image is None
    assert shared.columns(one[:, :, :4]).shape == (2, 1, 4)
