"""How kept pairs are held."""

from foveate.stages.store.kivi import Kivi
from foveate.stages.store.narrow import NarrowPairs, ZeroChannels
from foveate.stages.store.quantised import QuantisedPairs

__all__ = ["Kivi", "NarrowPairs", "QuantisedPairs", "ZeroChannels"]
