"""All methods, one file each: the five papers first, then those that they compare with."""

# The order is that of every listing.
from foveate.methods.mixkv import mixkv  # isort: skip
from foveate.methods.prefixkv import prefixkv  # isort: skip
from foveate.methods.csp import csp  # isort: skip
from foveate.methods.david import david  # isort: skip
from foveate.methods.lookm import lookm  # isort: skip

# isort: split
from foveate.methods.adakv import adakv
from foveate.methods.aircache import aircache
from foveate.methods.bacon import bacon
from foveate.methods.divprune import divprune
from foveate.methods.elastic_cache import elastic_cache
from foveate.methods.expected_attention import expected_attention
from foveate.methods.fastv import fastv
from foveate.methods.full import full
from foveate.methods.h2o import h2o
from foveate.methods.headkv import headkv
from foveate.methods.infinipotv import infinipotv
from foveate.methods.keydiff import keydiff
from foveate.methods.keyformer import keyformer
from foveate.methods.kivi import kivi
from foveate.methods.knorm import knorm
from foveate.methods.meda import meda
from foveate.methods.nacl import nacl
from foveate.methods.pyramiddrop import pyramiddrop
from foveate.methods.pyramidkv import pyramidkv
from foveate.methods.random import random
from foveate.methods.rkv import rkv
from foveate.methods.roco import roco
from foveate.methods.snapkv import snapkv
from foveate.methods.sparsemm import sparsemm
from foveate.methods.streaming_llm import streaming_llm
from foveate.methods.tgv_kv import tgv_kv
from foveate.methods.tova import tova
from foveate.methods.vl_cache import vl_cache
from foveate.methods.vnorm import vnorm

__all__ = [
    "adakv",
    "aircache",
    "bacon",
    "csp",
    "david",
    "divprune",
    "elastic_cache",
    "expected_attention",
    "fastv",
    "full",
    "h2o",
    "headkv",
    "infinipotv",
    "keydiff",
    "keyformer",
    "kivi",
    "knorm",
    "lookm",
    "meda",
    "mixkv",
    "nacl",
    "prefixkv",
    "pyramiddrop",
    "pyramidkv",
    "random",
    "rkv",
    "roco",
    "snapkv",
    "sparsemm",
    "streaming_llm",
    "tgv_kv",
    "tova",
    "vl_cache",
    "vnorm",
]
