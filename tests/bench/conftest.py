"""What collecting garbage skips: all that was there before, which would take most of the time."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _frozen() -> Iterator[None]:
    gc.freeze()
    yield
    gc.unfreeze()
