"""The methods that the papers compare with, one file each."""

from foveate.baselines.full import full
from foveate.baselines.h2o import h2o
from foveate.baselines.knorm import knorm
from foveate.baselines.random import random
from foveate.baselines.snapkv import snapkv
from foveate.baselines.streaming_llm import streaming_llm
from foveate.baselines.vnorm import vnorm

__all__ = ["full", "h2o", "knorm", "random", "snapkv", "streaming_llm", "vnorm"]
