"""A cache layer with a convolution or recurrent state beside its keys and values. The policy
compresses the keys and values; the state stays unchanged.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from foveate.hf.layer.cache_layer import FoveateLayer
from foveate.hf.layer.state import CacheState
from foveate.hf.model.internals import HybridLayer

_STATES: Any = object if HybridLayer is None else HybridLayer.__mro__[1]
"""Base class of transformers' HybridLayer that stores the states."""


class FoveateHybridLayer(FoveateLayer, _STATES):  # type: ignore[misc, no-untyped-call]
    """One layer of a cache under a policy, with its states."""

    def __init__(self, state: CacheState, model_index: int, ordinal: int, states: int):
        FoveateLayer.__init__(self, state, model_index, ordinal)
        _STATES.__init__(self, number_of_states=states)

    @property
    def is_croppable(self) -> bool:  # type: ignore[override]
        """True if the states can be rolled back."""
        return bool(_STATES.is_croppable.fget(self))

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        """Initialise the states; pairs need no initialisation."""
        if kwargs:
            _STATES.lazy_initialization(self, **kwargs)

    def reset(self) -> None:
        """Reset to an empty, armed layer."""
        _STATES.reset(self)
        FoveateLayer.reset(self)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the batch: row i becomes row ``beam_idx[i]``."""
        _STATES.reorder_cache(self, beam_idx)
        FoveateLayer.reorder_cache(self, beam_idx)

    def crop(self, tokens_to_remove: int) -> None:
        """Remove the newest tokens, as far as the states can be rolled back."""
        _STATES.crop(self, tokens_to_remove)
        FoveateLayer.crop(self, tokens_to_remove)
