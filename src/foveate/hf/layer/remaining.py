"""What each part of a policy leaves of one prompt: tokens computed, pairs held, bits, bytes."""

from __future__ import annotations

from typing import NamedTuple


class Remaining(NamedTuple):
    """Of all layers that are compressed, and all rows: which share of the ``visual`` tokens given
    was ``computed``, on average over layers; which share of the full cache's ``pairs`` is held,
    padding counted; in how many ``bits`` a number, on average and without scales, of those that the
    model ``made`` it in; and which share of the full cache's ``bytes`` that is.
    """

    visual: int
    computed: float
    pairs: float
    bits: float
    made: int
    bytes: float
    evicts: bool

    @property
    def parts(self) -> tuple[str, ...]:
        """What took part: of "computed", "pairs" and "bits", those that left something out."""
        said = {
            "computed": self.computed < 1,
            "pairs": self.evicts,
            "bits": self.bits < self.made,
        }
        return tuple(name for name, less in said.items() if less)

    def __str__(self) -> str:
        tokens = f"{self.computed * self.visual:,.0f} of {self.visual:,} visual tokens computed"
        said = {
            "computed": f"{tokens} ({self.computed:.0%}, mean of the layers)",
            "pairs": f"{self.pairs:.1%} of the pairs held",
            "bits": f"{self.bits:.1f} of {self.made} bits a number",
        }
        lines = [said[name] for name in said if name in self.parts]
        return "; ".join([*lines, f"{self.bytes:.1%} of the bytes"])
