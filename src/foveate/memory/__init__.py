"""Memory estimates: bytes that a model needs while it sees, reads and answers, computed from its
configuration without its weights.
"""

from foveate.memory.cache import Engine, Pool
from foveate.memory.fit import Fit, PrunedPrefill, Under, fit
from foveate.memory.request import Request, Unknown, frames_of, seconds_of, size_of
from foveate.memory.trace import Trace

__all__ = [
    "Engine",
    "Fit",
    "Pool",
    "PrunedPrefill",
    "Request",
    "Trace",
    "Under",
    "Unknown",
    "fit",
    "frames_of",
    "seconds_of",
    "size_of",
]
