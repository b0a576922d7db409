"""Statistics of keys, values and attention from the papers, one function each.

Every function takes ``layers`` as :func:`foveate.compress_tensors` does, per layer (q, k, v) of
shapes [b, hq, n, d], [b, h, n, d], [b, h, n, e], post-RoPE, and returns tensors per layer, in
float32 or float64. ``attention_mask`` is 1 at tokens and 0 at padding, on the left.
"""

from foveate_lab.analysis.measures import diversity, gini, importance, lorenz, ncar, redundancy
from foveate_lab.analysis.modalities import received, self_and_cross
from foveate_lab.analysis.prefixes import Searched, prefix_search

__all__ = [
    "Searched",
    "diversity",
    "gini",
    "importance",
    "lorenz",
    "ncar",
    "prefix_search",
    "received",
    "redundancy",
    "self_and_cross",
]
