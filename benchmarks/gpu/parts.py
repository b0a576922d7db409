"""Parts of the suite: titles, functions and time limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from benchmarks.gpu import (
    beside_attention,
    checks,
    contexts,
    half,
    headlines,
    kernels,
    peers,
    ragged,
    steps,
)
from benchmarks.gpu.models import SuiteSetting
from benchmarks.gpu.rows import Row


class SuitePart(NamedTuple):
    """Part of the suite.

    ``rows`` measures, ``page`` renders Markdown, ``limit`` is in seconds, ``missing`` is the text
    before the part has been measured.
    """

    title: str
    rows: Callable[[SuiteSetting], Iterator[Row]]
    page: Callable[[Sequence[Row]], list[str]]
    limit: int
    missing: str = "Not measured yet."


PARTS = {
    "kernels": SuitePart("Kernels against references", kernels.rows, kernels.page, 45),
    "ragged": SuitePart("Ragged decoding against a copy", ragged.rows, ragged.page, 20),
    "steps": SuitePart("A decoding step", steps.rows, steps.page, 65),
    "attention": SuitePart(
        "Beside FlashAttention and FlexAttention", beside_attention.rows, beside_attention.page, 40
    ),
    "half": SuitePart("Column sums in half precision", half.rows, half.page, 30),
    "tests": SuitePart(
        "Tests on the device",
        checks.rows,
        checks.page,
        70,
        "Not measured yet: the tests are in a checkout of Foveate, and need pytest.",
    ),
    "headlines": SuitePart("The papers' figures of speed", headlines.rows, headlines.page, 85),
    "contexts": SuitePart("Long contexts", contexts.rows, contexts.page, 50),
    "kvpress": SuitePart(
        "Beside kvpress",
        peers.rows,
        peers.page,
        120,
        "Not measured yet: `--peer-python` names the Python of an environment that has kvpress.",
    ),
}
"""Parts by name, in running order.

The parts up to "half" end within four minutes in total, imports and shutdown included, and so do
the three after it, because a machine may be available for no longer. The page shows what a part
measured until its limit.
"""
