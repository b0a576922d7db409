"""How many bits a number of held pairs takes."""

from __future__ import annotations

from foveate.cache.pairs.by_modality import ModalityPairs
from foveate.cache.pairs.pairs import Pairs
from foveate.cache.pairs.quantised import QuantisedPairs


def bits_held(pairs: Pairs, made: int) -> float:
    """Bits of a number, the mean over all pairs: those of the code where it is one, without its
    group's scale, and ``made``, those that the model made it in, elsewhere.
    """
    if not isinstance(pairs, QuantisedPairs | ModalityPairs):
        return float(made)
    coded, others = int(pairs.body.counts.sum()), int(pairs.rest.counts.sum())
    bits = coded * pairs.layout.bits + others * bits_held(pairs.rest, made)
    return bits / max(1, coded + others)
