"""Untimed decoding steps before timed ones."""

from __future__ import annotations

from collections.abc import Callable

from foveate.compression.composition import policy
from foveate.loading.model import Loaded
from foveate_lab.bench import of_model
from foveate_lab.bench.timing import prefill, steps

TOKENS = 256  # length of the prompt before the untimed steps


def warm_up_once(load: Callable[[], Loaded], iterations: int) -> Callable[[], Loaded]:
    """Wrap ``load`` so that its first call decodes so many tokens under the full cache."""
    done: list[Loaded] = []

    def loading() -> Loaded:
        loaded = load()
        if not done:
            subject = of_model(loaded, TOKENS)
            steps(subject, prefill(subject, policy("full")), iterations)
            done.append(loaded)
        return loaded

    return loading
