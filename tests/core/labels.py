"""A stage that only tests need: it carries any text, and another stage."""

from dataclasses import dataclass
from typing import Any

from foveate.policies.protocols import NoMerge
from foveate.policies.spec import stage


@stage("test_label")
@dataclass(frozen=True, kw_only=True)
class Label:
    """A merge that changes nothing."""

    text: str = "plain"
    number: float = 0.5
    on: bool = False
    inner: Any = NoMerge()

    def __call__(self, scored, kept):
        return scored.layer.k, scored.layer.v
