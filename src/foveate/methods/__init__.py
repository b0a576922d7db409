"""All methods, one file or folder each: the five papers first, then their baselines."""

# The order is that of every listing.
from foveate.methods.mixkv import mixkv as mixkv  # isort: skip
from foveate.methods.prefixkv import prefixkv as prefixkv  # isort: skip
from foveate.methods.csp import csp as csp  # isort: skip
from foveate.methods.david import david as david  # isort: skip
from foveate.methods.lookm import lookm as lookm  # isort: skip

# isort: split
from foveate.methods.adakv import adakv as adakv
from foveate.methods.aircache import aircache as aircache
from foveate.methods.bacon import bacon as bacon
from foveate.methods.cam import cam as cam
from foveate.methods.chunkkv import chunkkv as chunkkv
from foveate.methods.compactor import compactor as compactor
from foveate.methods.criticalkv import criticalkv as criticalkv
from foveate.methods.cur import cur as cur
from foveate.methods.divprune import divprune as divprune
from foveate.methods.duo_attention import duo_attention as duo_attention
from foveate.methods.elastic_cache import elastic_cache as elastic_cache
from foveate.methods.expected_attention import expected_attention as expected_attention
from foveate.methods.fast_kvzip import fast_kvzip as fast_kvzip
from foveate.methods.fastv import fastv as fastv
from foveate.methods.finch import finch as finch
from foveate.methods.full import full as full
from foveate.methods.h2o import h2o as h2o
from foveate.methods.headkv import headkv as headkv
from foveate.methods.hermes import hermes as hermes
from foveate.methods.infinipotv import infinipotv as infinipotv
from foveate.methods.keydiff import keydiff as keydiff
from foveate.methods.keyformer import keyformer as keyformer
from foveate.methods.kivi import kivi as kivi
from foveate.methods.knorm import knorm as knorm
from foveate.methods.kvzap import kvzap as kvzap
from foveate.methods.kvzip import kvzip as kvzip
from foveate.methods.lagkv import lagkv as lagkv
from foveate.methods.leverage import leverage as leverage
from foveate.methods.meda import meda as meda
from foveate.methods.nacl import nacl as nacl
from foveate.methods.non_causal_attention import non_causal_attention as non_causal_attention
from foveate.methods.pyramiddrop import pyramiddrop as pyramiddrop
from foveate.methods.pyramidkv import pyramidkv as pyramidkv
from foveate.methods.q_filters import q_filters as q_filters
from foveate.methods.random import random as random
from foveate.methods.recent_frames import recent_frames as recent_frames
from foveate.methods.recommended import recommended as recommended
from foveate.methods.rkv import rkv as rkv
from foveate.methods.roco import roco as roco
from foveate.methods.simlayerkv import simlayerkv as simlayerkv
from foveate.methods.snapkv import snapkv as snapkv
from foveate.methods.sparsemm import sparsemm as sparsemm
from foveate.methods.star_kv import star_kv as star_kv
from foveate.methods.streaming_llm import streaming_llm as streaming_llm
from foveate.methods.streammem import streammem as streammem
from foveate.methods.tgv_kv import tgv_kv as tgv_kv
from foveate.methods.think import think as think
from foveate.methods.tova import tova as tova
from foveate.methods.triattention import triattention as triattention
from foveate.methods.turboquant import turboquant as turboquant
from foveate.methods.vase import vase as vase
from foveate.methods.vl_cache import vl_cache as vl_cache
from foveate.methods.vnorm import vnorm as vnorm

# isort: split
from foveate.methods import pruning as pruning
