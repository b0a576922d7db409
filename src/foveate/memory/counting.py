"""Bytes of the tensors that live while a model runs, counted without memory for them.

Inside :class:`Counting` the model's own code runs, operator by operator, on PyTorch's "meta"
device: tensors that have a shape and a type, and no numbers. What an operator returns is counted
until nothing refers to it any more, as an allocator would. Models look at a few small tensors while
they run (token ids, the grids of images, positions); these are made for real.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from foveate.memory.operators import FusedAttention, flops, returned

META, CPU = torch.device("meta"), torch.device("cpu")
SMALL = 2**20  # numbers of a tensor that is made for real, at most
COUNTS = 2**23  # the same of whole numbers: ids and positions of the longest prompts are looked at

_aten = torch.ops.aten
_FILLED = {
    _aten.empty.memory_format,
    _aten.full.default,
    _aten.ones.default,
    _aten.zeros.default,
    _aten.new_zeros.default,
}
"""What is made before it is written to: of floating point, its numbers are never looked at."""


class Counting(TorchDispatchMode):
    """Counts bytes of storages from when they are made until they are freed.

    Attributes:
        live: bytes now.
        peak: the most at once since :meth:`begin`.
    """

    def __init__(self, fused: FusedAttention | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = self._flops = 0
        self._fused = fused
        self._known: dict[int, Any] = {}

    @property
    def flops(self) -> int:
        """Operations of matrix products so far, those of fused attention with them."""
        return self._flops + (0 if self._fused is None else self._fused.flops)

    def begin(self) -> None:
        """The peak begins anew, at what lives now."""
        self.peak = self.live

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """Does not count these, such as weights."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = storage

    def count(self, tensors: Iterable[Tensor]) -> None:
        """Counts these until they are freed."""
        for tensor in tensors:
            self._count(tensor)

    def risen(self, by: int) -> None:
        """The peak is at least so many bytes above what lives now: of work that is known."""
        self.peak = max(self.peak, self.live + by)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = self._run(func, args, kwargs or {})
        self._flops += flops(func, args, kwargs or {}, out)
        self.count(one for one in tree_leaves(out) if isinstance(one, Tensor))
        return out

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return

        def freed(_: object) -> None:
            self.live -= size
            self._known.pop(key, None)

        self._known[key] = weakref.ref(storage, freed)
        self.live += size
        self.peak = max(self.peak, self.live)

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        if any(one.is_meta for one in tensors):
            special = returned(func, args)
            return _without_numbers(func, args, kwargs) if special is None else special
        if "device" in kwargs:
            kwargs = {**kwargs, "device": CPU}
        if func._schema.is_mutable or func.is_view or func is _aten._local_scalar_dense.default:
            return func(*args, **kwargs)
        return _small_or_without(func, args, kwargs)


def _small_or_without(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operator makes of real tensors, or of none: real itself where it is small."""
    try:
        shapes = _without_numbers(func, args, kwargs)
    except (NotImplementedError, RuntimeError):  # its shape follows from the numbers
        return func(*args, **kwargs)
    made = [one for one in tree_leaves(shapes) if isinstance(one, Tensor)]
    written = func in _FILLED and any(one.is_floating_point() for one in made)
    whole = all(one.dtype in (torch.int32, torch.int64) for one in made)
    if written or sum(one.numel() for one in made) > (COUNTS if whole else SMALL):
        return shapes
    return func(*args, **kwargs)


def _without_numbers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The same operator on tensors of these shapes that have no numbers."""
    if "device" in kwargs or not any(isinstance(one, Tensor) for one in tree_leaves(args)):
        kwargs = {**kwargs, "device": META}
    bare: Callable[[Tensor], Tensor] = lambda one: one if one.is_meta else one.to(META)  # noqa: E731
    args, kwargs = tree_map_only(Tensor, bare, (args, kwargs))
    return func(*args, **kwargs)
