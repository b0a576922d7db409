"""Storage of the kept KV pairs.

:class:`DensePairs` if every head keeps the same number, :class:`RaggedPairs` otherwise. Both grow
at the end while decoding; :class:`RewrittenPairs` are dense ones in which each new pair replaces
another. :class:`QuantisedPairs` store all but the newest as codes, :class:`NarrowPairs` keys
without the channels that are zero, :class:`ModalityPairs` visual tokens in fewer bits than text.
All store the original column of each slot: a token's index in the batch's padded input, counted
from the start of the conversation. :class:`Pairs` is the protocol of them all.
"""

from foveate.cache.pairs.body import Along, Body, CodeLayout, PairLayout, short_columns
from foveate.cache.pairs.by_modality import ModalityPairs, bits_held
from foveate.cache.pairs.dense import GROWTH, DensePairs, ExpandedPairs, Padded, listed
from foveate.cache.pairs.in_place import RewrittenPairs, rewritten
from foveate.cache.pairs.narrow import NarrowPairs
from foveate.cache.pairs.pair_sizes import Form, exact_bytes, uncompressed_bytes
from foveate.cache.pairs.pairs import Coded, Pairs, Renumbered, Roomy
from foveate.cache.pairs.quantised import QuantisedPairs
from foveate.cache.pairs.ragged import RaggedPairs, exact, only, store

__all__ = [
    "GROWTH",
    "Along",
    "Body",
    "CodeLayout",
    "Coded",
    "DensePairs",
    "ExpandedPairs",
    "Form",
    "ModalityPairs",
    "NarrowPairs",
    "Padded",
    "PairLayout",
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
    "short_columns",
    "store",
    "uncompressed_bytes",
]
