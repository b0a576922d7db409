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
from foveate.methods.cam import cam
from foveate.methods.chunkkv import chunkkv
from foveate.methods.compactor import compactor
from foveate.methods.criticalkv import criticalkv
from foveate.methods.cur import cur
from foveate.methods.divprune import divprune
from foveate.methods.duo_attention import duo_attention
from foveate.methods.elastic_cache import elastic_cache
from foveate.methods.expected_attention import expected_attention
from foveate.methods.fastv import fastv
from foveate.methods.finch import finch
from foveate.methods.full import full
from foveate.methods.h2o import h2o
from foveate.methods.headkv import headkv
from foveate.methods.infinipotv import infinipotv
from foveate.methods.keydiff import keydiff
from foveate.methods.keyformer import keyformer
from foveate.methods.kivi import kivi
from foveate.methods.knorm import knorm
from foveate.methods.kvzip import kvzip
from foveate.methods.lagkv import lagkv
from foveate.methods.leverage import leverage
from foveate.methods.meda import meda
from foveate.methods.nacl import nacl
from foveate.methods.non_causal_attention import non_causal_attention
from foveate.methods.pyramiddrop import pyramiddrop
from foveate.methods.pyramidkv import pyramidkv
from foveate.methods.q_filters import q_filters
from foveate.methods.random import random
from foveate.methods.recommended import recommended
from foveate.methods.rkv import rkv
from foveate.methods.roco import roco
from foveate.methods.simlayerkv import simlayerkv
from foveate.methods.snapkv import snapkv
from foveate.methods.sparsemm import sparsemm
from foveate.methods.streaming_llm import streaming_llm
from foveate.methods.tgv_kv import tgv_kv
from foveate.methods.think import think
from foveate.methods.tova import tova
from foveate.methods.vl_cache import vl_cache
from foveate.methods.vnorm import vnorm

__all__ = [
    "adakv",
    "aircache",
    "bacon",
    "cam",
    "chunkkv",
    "compactor",
    "criticalkv",
    "csp",
    "cur",
    "david",
    "divprune",
    "duo_attention",
    "elastic_cache",
    "expected_attention",
    "fastv",
    "finch",
    "full",
    "h2o",
    "headkv",
    "infinipotv",
    "keydiff",
    "keyformer",
    "kivi",
    "knorm",
    "kvzip",
    "lagkv",
    "leverage",
    "lookm",
    "meda",
    "mixkv",
    "nacl",
    "non_causal_attention",
    "prefixkv",
    "pyramiddrop",
    "pyramidkv",
    "q_filters",
    "random",
    "recommended",
    "rkv",
    "roco",
    "simlayerkv",
    "snapkv",
    "sparsemm",
    "streaming_llm",
    "tgv_kv",
    "think",
    "tova",
    "vl_cache",
    "vnorm",
]
