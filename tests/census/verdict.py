"""What the census says of a type."""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """Of a type: "exact", "refused" or "not built" with the reason, or "wrong" with what is not as
    it should be. ``steps`` are the prompts that were tried, ``layers`` how many of how many are
    compressed, ``visual`` whether the tokens of images are known as such.
    """

    name: str
    kind: str
    reason: str = ""
    steps: tuple[str, ...] = ()
    layers: str = ""
    visual: bool = False
