"""Tokens, seconds and bytes of answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from time import perf_counter
from typing import Any

import torch
from transformers import StoppingCriteria

from foveate.policies.policy import Policy
from foveate.policies.protocols import FullPrecision


@dataclass(frozen=True)
class Usage:
    """Usage of one answer, or the sum of several.

    ``read`` tokens were new, ``reused`` ones were in the conversation's cache, stored or evicted.
    ``generated`` counts the end token. ``first_token_seconds`` run from the model's start to the
    first token, ``decode_seconds`` from there to the last one. ``stored_bytes`` is the size of the
    compressed layers after the answer, and ``peak_bytes`` the largest after any of its tokens,
    spare room included; activations and the prompt before its compression are not counted.
    """

    read: int = 0
    reused: int = 0
    generated: int = 0
    first_token_seconds: int | float = 0.0
    decode_seconds: int | float = 0.0
    stored_bytes: int = 0
    peak_bytes: int = 0
    answers: int = 0

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second after the first one; 0 if no answer has a second token."""
        decoded = self.generated - self.answers
        return decoded / self.decode_seconds if decoded > 0 and self.decode_seconds > 0 else 0.0

    def __add__(self, later: Usage) -> Usage:
        return Usage(
            self.read + later.read,
            self.reused + later.reused,
            self.generated + later.generated,
            self.first_token_seconds + later.first_token_seconds,
            self.decode_seconds + later.decode_seconds,
            later.stored_bytes,
            max(self.peak_bytes, later.peak_bytes),
            self.answers + later.answers,
        )

    def __str__(self) -> str:
        mean = self.first_token_seconds / max(1, self.answers)
        return (
            f"{self.answers} answer(s): {self.read:,} tokens read, {self.reused:,} reused, "
            f"{self.generated:,} generated; first token after {mean:.2f} s, "
            f"{self.tokens_per_second:.1f} tokens/s; {self.stored_bytes / 2**20:,.1f} MiB stored, "
            f"{self.peak_bytes / 2**20:,.1f} MiB at the peak"
        )


class AnswerMeter(StoppingCriteria):
    """Stopping criterion that ends generation once an event is set, and measures each token.

    ``stored`` returns the current size of the cache in bytes. It is called after the first token,
    and after each one only if ``policy`` may shrink the cache during an answer.
    """

    def __init__(self, stop: Event, policy: Policy, stored: Callable[[], int]):
        self._stop, self._stored = stop, stored
        self._shrinks = policy.when.decodes or not isinstance(policy.store, FullPrecision)
        self._start = self._first = self._last = perf_counter()
        self._count = self._peak = 0

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        stopped = input_ids.new_full((len(input_ids),), self._stop.is_set(), dtype=torch.bool)
        if not self._count and input_ids.is_cuda:
            torch.cuda.synchronize(input_ids.device)  # the first token's kernels may still run
        self._last = perf_counter()
        self._first = self._first if self._count else self._last
        self._count += 1
        if self._shrinks or self._count == 1:
            self.note_size()
        return stopped

    def note_size(self) -> None:
        """Measure the cache; call it once more after the last token."""
        self._peak = max(self._peak, self._stored())

    def usage(self, read: int, reused: int, generated: int, stored: int) -> Usage:
        """Return the usage of the answer, whose cache now has ``stored`` bytes."""
        first, decoding = self._first - self._start, self._last - self._first
        return Usage(
            read, reused, generated, first, decoding, stored, max(self._peak, stored), answers=1
        )
