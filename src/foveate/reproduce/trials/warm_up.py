"""Decoding steps whose time nobody takes, before those whose time is."""

from __future__ import annotations

from collections.abc import Callable

from foveate.bench import of_model
from foveate.bench.timing import prefill, steps
from foveate.core.composition import policy
from foveate.eval.model import Loaded

TOKENS = 256  # of the prompt that is read for it


def warmed_up(load: Callable[[], Loaded], iterations: int) -> Callable[[], Loaded]:
    """``load``, whose first call decodes so many tokens under the full cache once it has the
    model.
    """
    done: list[Loaded] = []

    def loading() -> Loaded:
        loaded = load()
        if not done:
            subject = of_model(loaded, TOKENS)
            steps(subject, prefill(subject, policy("full")), iterations)
            done.append(loaded)
        return loaded

    return loading
