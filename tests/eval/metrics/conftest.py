# ruff: noqa: SIM905
"""Random texts that metrics disagree on: short, with words in common, full stops and digits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

WORDS = (
    "a the cat cats dog Dog's sat on mat two 2 3.5 1,000 don't dont somebody'd yes/no U.S. "
    "b-c (d) no . , ! end. A B C paragraph 7 12 none ten"
).split()

Texts = Callable[..., str]


@pytest.fixture
def texts() -> Texts:
    """Makes a text of up to so many words."""
    r = random.Random(0)

    def text(longest: int = 8, words: Sequence[str] = WORDS, empty: bool = True) -> str:
        chosen = [r.choice(words) for _ in range(r.randint(0 if empty else 1, longest))]
        said = "".join(word + r.choice([" ", " ", " ", "  ", "\n", ". "]) for word in chosen)
        return said if r.random() < 0.2 else said.strip()

    return text
