"""Pruning methods, which choose the visual tokens that are computed: ``NAME.prune(...)``.

They stand in front of a spec.
"""

from foveate.methods.pruning.cdpruner import CDPrunerPrune as CDPrunerPrune
from foveate.methods.pruning.divprune import DivPrunePrune as DivPrunePrune
from foveate.methods.pruning.evs import EVSPrune as EVSPrune
from foveate.methods.pruning.fastv import FastVPrune as FastVPrune
from foveate.methods.pruning.pixelprune import PixelPrunePrune as PixelPrunePrune
from foveate.methods.pruning.pyramiddrop import PyramidDropPrune as PyramidDropPrune
from foveate.methods.pruning.random import RandomPrune as RandomPrune
from foveate.methods.pruning.sparsevlm import SparseVLMPrune as SparseVLMPrune
from foveate.methods.pruning.spatial import SpatialPrune as SpatialPrune
from foveate.methods.pruning.vidcom2 import VidCom2Prune as VidCom2Prune
from foveate.methods.pruning.visionzip import VisionZipPrune as VisionZipPrune
