"""Kept sets of two ways to compute the same scores: equal, but for ties.

Where the last pair that is kept and the first that is not have nearly the same score, rounding
decides. Such pairs are found by what noise on the scores would change, so this holds for every
budget and selection; and those whose score is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple
from unittest import mock

import torch
from torch import Tensor

from foveate.cache.layer import Scored
from foveate.compression import reading
from foveate.compression.byte_budget import Bytes
from foveate.compression.groups import Groups
from foveate.compression.pipeline import Kept, keep
from foveate.policies.policy import Policy
from tests.jitter import WIDER, noise

NEAR = 2e-5 + WIDER  # of a score, or of the mean of its head's
DRAWS = 32  # two scores that tie are swapped by a quarter of them


class Choice(NamedTuple):
    """Layers that were compressed together: their scores, the bytes that a budget in bytes has
    for them, and what was kept.
    """

    policy: Policy
    scored: Sequence[Scored]
    within: Bytes | None
    kept: Sequence[Kept]


@contextmanager
def choices() -> Iterator[list[Choice]]:
    """Fills a list with every choice that is made inside."""
    found: list[Choice] = []

    def noting(
        policy: Policy, scored: Sequence[Scored], within: Bytes | None = None, *groups: Groups
    ) -> list[Kept]:
        kept = keep(policy, scored, within, *groups)
        found.append(Choice(policy, scored, within, kept))
        return kept

    with mock.patch.object(reading, "keep", noting):
        yield found


def same_kept(ours: Sequence[Choice], theirs: Sequence[Choice]) -> Tensor:
    """Which rows keep the same, bool [b]; in the others, a tie was decided otherwise.

    Raises:
        AssertionError: a pair that one of them keeps and the other does not is no tie.
    """
    if not ours and not theirs:  # both keep everything
        return torch.tensor(True)
    same = torch.ones(len(ours[0].kept[0].mask), dtype=torch.bool)
    for mine, other in zip(ours, theirs, strict=True):
        if not bool(same.any()):
            break
        unlike = [a.mask[same] ^ b.mask[same] for a, b in zip(mine.kept, other.kept, strict=True)]
        if any(bool(one.any()) for one in unlike):
            found = [tie[same] for tie in ties(mine)]
            for place, (one, tie) in enumerate(zip(unlike, found, strict=True)):
                assert not bool((one & ~tie).any()), f"layer {place} keeps other pairs"
            same[same.clone()] = ~torch.stack([one.flatten(1).any(1) for one in unlike]).any(0)
    return same


def holds_best(kept: Tensor, scores: Tensor, count: int) -> bool:
    """Whether so many pairs are kept (bool [...]), and none that is not has a higher score [...],
    but for ties.
    """
    if int(kept.sum()) != count:
        return False
    near = NEAR * float(scores.abs().mean())
    return count == kept.numel() or float(scores[~kept].max() - scores[kept].min()) <= near


def ties(choice: Choice, near: float = NEAR) -> list[Tensor]:
    """Of every layer, the pairs [b, h, n] whose fate such noise changes."""
    found = [torch.zeros_like(one.mask) for one in choice.kept]
    for changes in _with_noise(choice, near):
        for tie, changed in zip(found, changes, strict=True):
            tie |= changed
    return [tie | _beside(tie, one, near) for tie, one in zip(found, choice.scored, strict=True)]


def settled(choice: Choice, near: float = NEAR) -> bool:
    """Whether no pair's fate is one that such noise changes."""
    return not any(bool(one.any()) for changes in _with_noise(choice, near) for one in changes)


def _with_noise(choice: Choice, near: float) -> Iterator[list[Tensor]]:
    """Of every draw the pairs of every layer that stay or leave otherwise."""
    for draw in range(DRAWS):
        noisy = [_noisy(one, draw, near) for one in choice.scored]
        again = keep(choice.policy, noisy, choice.within)
        yield [one.mask ^ other.mask for one, other in zip(choice.kept, again, strict=True)]


def _beside(tie: Tensor, scored: Scored, near: float) -> Tensor:
    """Pairs whose score is that of a tie of their head: of many that are equal, as keys of the same
    token are in the first layer, noise may move some alone.
    """
    values = scored.scores.values
    apart = (values[..., :, None] - values[..., None, :]).abs()
    return ((apart <= near * _sizes(values)[..., None]) & tie[..., None, :]).any(-1)


def _noisy(scored: Scored, draw: int, near: float) -> Scored:
    scores, raw = scored.scores, _off(scored.raw, draw, near)
    values = torch.where(scores.values.isfinite(), raw, scores.values)
    parts = {name: _off(part, draw, near) for name, part in scores.parts.items()}
    return replace(scored, raw=raw, scores=scores._replace(values=values, parts=parts))


def _sizes(values: Tensor) -> Tensor:
    """What numbers are near by: themselves, or the mean of their head's where that is more."""
    finite = values.nan_to_num(0.0, 0.0, 0.0).abs()
    return torch.maximum(finite, finite.mean(-1, keepdim=True))


def _off(values: Tensor, draw: int, near: float) -> Tensor:
    """Numbers that are a little more or a little less; what is infinite stays. Of equal numbers,
    which may not be equal where they are computed otherwise, each goes its own way.
    """
    if values.dtype != torch.float32:
        return values
    places = torch.arange(values.shape[-1], dtype=torch.int32)
    return values + near * _sizes(values) * noise(values, 7_919 * draw + 104_729 * places).sign()
