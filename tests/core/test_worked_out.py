"""What layers of a pass have in common is found once, and never taken for another's."""

from dataclasses import replace

import torch

from foveate.core.layer import Layer
from foveate.stages.recent import is_recent


def layer_of(tokens: int = 6, late: int = 6) -> Layer:
    q, k = torch.randn(1, 2, late, 4), torch.randn(1, 2, tokens, 4)
    pos = torch.arange(tokens).expand(1, 2, tokens)
    return Layer(q=q, k=k, v=k, pos=pos, q_pos=pos[:, 0, tokens - late :], scale=0.5)


def test_layers_with_the_same_positions_share_what_follows_from_them():
    one = layer_of()
    other = replace(one, k=torch.randn(1, 2, 6, 4))
    assert other.last_visible(2) is one.last_visible(2)
    assert is_recent(other, 2, other.lengths) is is_recent(one, 2, one.lengths)
    assert other.lengths is one.lengths
    assert other.valid is one.valid


def test_other_queries_or_budgets_are_told_apart():
    one = layer_of()
    assert one.last_visible(2)[0, 0].tolist() == [[False], [True]]
    assert is_recent(one, 2, one.lengths)[0, 0].tolist() == [False] * 4 + [True] * 2
    early = replace(one, q=one.q[:, :, :4], q_pos=one.q_pos[:, :4])
    assert early.last_visible(2)[0, 0].tolist() == [[False] * 3, [True, False, False]]
    assert is_recent(early, 2, early.lengths)[0, 0].tolist() == [False] * 2 + [True] * 4
    assert is_recent(one, 0.5, torch.tensor([2]))[0, 0].tolist() == [False] * 5 + [True]
    assert is_recent(one, 0.5, torch.tensor([4]))[0, 0].tolist() == [False] * 4 + [True] * 2


def test_a_mask_is_read_anew_and_not_kept():
    one = layer_of()
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    mask[..., 4, 1] = False
    masked = replace(one, mask=mask)
    assert masked.last_visible(2).shape[-1] == 5
    mask[..., 4, 1] = True
    assert masked.last_visible(2).shape[-1] == 0
    assert not masked.worked_out
