"""How a method scores attention heads: by where they look as an answer is generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from foveate.errors import InvalidInput, suggest
from foveate.policies.registry import Registry


@dataclass(frozen=True)
class Shown:
    """A prompt, and where it shows what.

    ``inputs`` are those of one prompt, as ``generate`` takes them. ``spans`` are texts that its
    tokens show (a line of a document, a needle), each with the indices of these tokens in the
    prompt. ``answer`` is what the model should say, where a method wants to know.
    """

    inputs: Mapping[str, Any]
    spans: Sequence[tuple[str, Sequence[int]]]
    answer: str = ""


@runtime_checkable
class HeadReading(Protocol):
    """What is read off the attention, in two steps, so that little has to be remembered."""

    def notice(self, attention: Float[Tensor, "hq n"], shown: Shown) -> Float[Tensor, "hq"]:
        """Of the query that a token is generated from: what it pays to prompt and answer so far."""
        ...

    def score(
        self, noticed: Float[Tensor, "s hq"], tokens: Sequence[str], shown: Shown
    ) -> Float[Tensor, "hq"] | None:
        """One layer's heads in one answer of ``s`` tokens; None if the answer does not count."""
        ...


HEAD_READINGS: Registry[HeadReading] = Registry()


def head_reading(method: str) -> HeadReading:
    """How the method of that name scores heads.

    Raises:
        InvalidInput: it scores none.
    """
    if method not in HEAD_READINGS:
        raise InvalidInput(f"{method!r} scores no heads. {suggest(method, HEAD_READINGS)}")
    return HEAD_READINGS[method]
