"""Kept pairs in 8, 4 or 2 bits, the newest in full precision."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from foveate.core.errors import InvalidParameter
from foveate.core.pairs import Pairs
from foveate.core.spec import stage
from foveate.ops.affine_codes import BITS
from foveate.stages.store.body import Body
from foveate.stages.store.quantised import QuantisedPairs


@stage("kivi")
@dataclass(frozen=True, kw_only=True)
class Kivi:
    """Of every KV head, all pairs but the last ``residual`` in ``bits`` bits: keys per channel, in
    groups of ``group`` tokens that follow each other in the cache, values per token, in groups of
    ``group`` channels. While decoding, the oldest pairs in full precision are quantised a ``group``
    at a time.

    Source: KIVI (arXiv:2402.02750), section 3.3.
    """

    bits: int = 2
    group: int = 32
    residual: int = 128
    exact: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise InvalidParameter(f"bits={self.bits}: choose 8, 4 or 2.")
        if self.group < 1 or self.residual < 0:
            raise InvalidParameter(
                f"group={self.group}, residual={self.residual}: give a group of at least 1, and a "
                "residual that is not negative."
            )

    def __call__(self, pairs: Pairs) -> Pairs:
        if isinstance(pairs, QuantisedPairs):
            return pairs
        return QuantisedPairs.of(pairs, self.bits, self.group, self.residual)

    def filled(self, rest: Pairs, body: dict[str, Tensor]) -> QuantisedPairs:
        """The pairs whose tensors were read from a file."""
        return QuantisedPairs(Body(**body), rest, self.bits, self.group, self.residual)
