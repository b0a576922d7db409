"""Measurements of prompts as they are read, in one file each."""

from foveate_lab.reproduce.probes.coverage import Coverage
from foveate_lab.reproduce.probes.key_map import KeyMap
from foveate_lab.reproduce.probes.searches import Searches
from foveate_lab.reproduce.probes.similarity import Similarity
from foveate_lab.reproduce.probes.smoothing import Smoothing
from foveate_lab.reproduce.probes.tokens import TokenMap

__all__ = ["Coverage", "KeyMap", "Searches", "Similarity", "Smoothing", "TokenMap"]
