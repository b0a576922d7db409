"""Recent frames: the last images whole, text first, and no more than the budget."""

from __future__ import annotations

import pytest
import torch

import foveate


@pytest.mark.parametrize("frames", [1, 2, 4])
def test_the_last_frames_and_text_are_kept(frames):
    vision = torch.tensor([[0, 0] + [1, 1, 1, 0] * 4]).bool()
    q, k, v = (torch.randn(1, h, 18, 8) for h in (4, 2, 2))
    policy = foveate.recent_frames(budget=16, frames=frames)
    (found,) = foveate.compress_tensors(policy, [(q, k, v)], vision=vision)
    first = 2 + 4 * (4 - frames)
    expected = [i for i in range(18) if not vision[0, i] or i >= first][-16:]
    if frames == 4:  # 18 tokens: the oldest visual ones go
        expected = [i for i in range(18) if i not in (2, 3)]
    for head in range(2):
        assert found.positions(0, head).tolist() == expected
