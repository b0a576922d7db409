"""Foveate: shrink the key-value cache of vision-language models, with the answer unchanged."""

from foveate import analysis, stages
from foveate.backends.hf import Session, Stats, calibrate, compress
from foveate.baselines import full, h2o, knorm, random, snapkv, streaming_llm, vnorm
from foveate.core.composition import policy
from foveate.core.compress import Kept, compress_tensors
from foveate.core.errors import FoveateError
from foveate.core.method import METHODS, Paper, method
from foveate.core.policy import Policy
from foveate.papers import csp, david, lookm, mixkv, prefixkv

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "FoveateError",
    "Kept",
    "Paper",
    "Policy",
    "Session",
    "Stats",
    "analysis",
    "calibrate",
    "compress",
    "compress_tensors",
    "csp",
    "david",
    "full",
    "h2o",
    "knorm",
    "lookm",
    "method",
    "mixkv",
    "policy",
    "prefixkv",
    "random",
    "snapkv",
    "stages",
    "streaming_llm",
    "vnorm",
]
