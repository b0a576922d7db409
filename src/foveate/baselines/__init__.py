"""The methods that the papers compare with, one file each."""

from foveate.baselines.adakv import adakv
from foveate.baselines.elastic_cache import elastic_cache
from foveate.baselines.expected_attention import expected_attention
from foveate.baselines.full import full
from foveate.baselines.h2o import h2o
from foveate.baselines.headkv import headkv
from foveate.baselines.infinipotv import infinipotv
from foveate.baselines.keydiff import keydiff
from foveate.baselines.keyformer import keyformer
from foveate.baselines.kivi import kivi
from foveate.baselines.knorm import knorm
from foveate.baselines.meda import meda
from foveate.baselines.nacl import nacl
from foveate.baselines.pyramidkv import pyramidkv
from foveate.baselines.random import random
from foveate.baselines.roco import roco
from foveate.baselines.snapkv import snapkv
from foveate.baselines.sparsemm import sparsemm
from foveate.baselines.streaming_llm import streaming_llm
from foveate.baselines.tgv_kv import tgv_kv
from foveate.baselines.tova import tova
from foveate.baselines.vl_cache import vl_cache
from foveate.baselines.vnorm import vnorm

__all__ = [
    "adakv",
    "elastic_cache",
    "expected_attention",
    "full",
    "h2o",
    "headkv",
    "infinipotv",
    "keydiff",
    "keyformer",
    "kivi",
    "knorm",
    "meda",
    "nacl",
    "pyramidkv",
    "random",
    "roco",
    "snapkv",
    "sparsemm",
    "streaming_llm",
    "tgv_kv",
    "tova",
    "vl_cache",
    "vnorm",
]
