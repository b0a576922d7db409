"""Kept pairs, stored for real.

:class:`DensePairs` when every head keeps the same number, :class:`RaggedPairs` otherwise. Both grow
at the end while decoding; :class:`RewrittenPairs` are dense ones of which one goes for each that
comes. :class:`QuantisedPairs` hold all but the newest in codes, :class:`NarrowPairs` keys without
the channels that are zero. All know the original column of each slot: a token's index in the
batch's padded input, counted from the start of the conversation. :class:`Pairs` is what every way
to hold them can do; :class:`ModalityPairs` hold visual tokens in fewer bits than text.
"""

from foveate.cache.pairs.body import Along, CodeLayout
from foveate.cache.pairs.by_modality import ModalityPairs, bits_held
from foveate.cache.pairs.dense import GROWTH, DensePairs, Padded, listed
from foveate.cache.pairs.form import Form, exact_bytes, whole_bytes
from foveate.cache.pairs.narrow import NarrowPairs
from foveate.cache.pairs.pairs import Coded, Pairs, Renumbered, Roomy
from foveate.cache.pairs.quantised import QuantisedPairs
from foveate.cache.pairs.ragged import RaggedPairs, exact, only, store
from foveate.cache.pairs.rewritten import RewrittenPairs, rewritten

__all__ = [
    "GROWTH",
    "Along",
    "CodeLayout",
    "Coded",
    "DensePairs",
    "Form",
    "ModalityPairs",
    "NarrowPairs",
    "Padded",
    "Pairs",
    "QuantisedPairs",
    "RaggedPairs",
    "Renumbered",
    "RewrittenPairs",
    "Roomy",
    "bits_held",
    "exact",
    "exact_bytes",
    "listed",
    "only",
    "rewritten",
    "store",
    "whole_bytes",
]
