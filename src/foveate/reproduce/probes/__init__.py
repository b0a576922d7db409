"""What is measured of prompts as they are read: one file each."""

from foveate.reproduce.probes.coverage import Coverage
from foveate.reproduce.probes.key_map import KeyMap
from foveate.reproduce.probes.searches import Searches
from foveate.reproduce.probes.similarity import Similarity
from foveate.reproduce.probes.smoothing import Smoothing
from foveate.reproduce.probes.tokens import TokenMap

__all__ = ["Coverage", "KeyMap", "Searches", "Similarity", "Smoothing", "TokenMap"]
