"""Foveate: shrink the key-value cache of vision-language models, and measure what it changes."""

from foveate import analysis, stages
from foveate.backends.hf import (
    Session,
    Stats,
    calibrate,
    calibrate_heads,
    compress,
    import_head_scores,
)
from foveate.baselines import (
    adakv,
    elastic_cache,
    expected_attention,
    full,
    h2o,
    headkv,
    infinipotv,
    keydiff,
    keyformer,
    kivi,
    knorm,
    meda,
    nacl,
    pyramidkv,
    random,
    roco,
    snapkv,
    sparsemm,
    streaming_llm,
    tgv_kv,
    tova,
    vl_cache,
    vnorm,
)
from foveate.core.composition import policy
from foveate.core.compress import compress_tensors
from foveate.core.heads import Shown
from foveate.core.method import METHODS, Paper, method
from foveate.core.pipeline import Kept
from foveate.core.policy import Policy
from foveate.errors import FoveateError
from foveate.papers import csp, david, lookm, mixkv, prefixkv
from foveate.report.lens import Lens, lens

__version__ = "0.1.0"
__all__ = [
    "METHODS",
    "FoveateError",
    "Kept",
    "Lens",
    "Paper",
    "Policy",
    "Session",
    "Shown",
    "Stats",
    "adakv",
    "analysis",
    "calibrate",
    "calibrate_heads",
    "compress",
    "compress_tensors",
    "csp",
    "david",
    "elastic_cache",
    "expected_attention",
    "full",
    "h2o",
    "headkv",
    "import_head_scores",
    "infinipotv",
    "keydiff",
    "keyformer",
    "kivi",
    "knorm",
    "lens",
    "lookm",
    "meda",
    "method",
    "mixkv",
    "nacl",
    "policy",
    "prefixkv",
    "pyramidkv",
    "random",
    "roco",
    "snapkv",
    "sparsemm",
    "stages",
    "streaming_llm",
    "tgv_kv",
    "tova",
    "vl_cache",
    "vnorm",
]
