"""Foveate: shrink the key-value cache of vision-language models, with the answer unchanged."""

from foveate import stages
from foveate.backends.hf import Session, Stats, compress
from foveate.baselines import full, h2o, knorm, random, snapkv, streaming_llm, vnorm
from foveate.core.compress import Kept, compress_tensors
from foveate.core.errors import FoveateError
from foveate.core.method import METHODS, Paper, method, policy
from foveate.core.policy import Policy

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "FoveateError",
    "Kept",
    "Paper",
    "Policy",
    "Session",
    "Stats",
    "compress",
    "compress_tensors",
    "full",
    "h2o",
    "knorm",
    "method",
    "policy",
    "random",
    "snapkv",
    "stages",
    "streaming_llm",
    "vnorm",
]
