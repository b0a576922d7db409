"""Bytes of the tensors that live while a model runs, counted without memory for them.

Inside :class:`Counting` the model's own code runs, operator by operator, on PyTorch's "meta"
device: tensors that have a shape and a type, and no numbers. What an operator returns is counted
until nothing refers to it any more, as an allocator would. Models look at a few small tensors while
they run (token ids, the grids of images, positions); these are made for real.

Blocks of a vision tower that do what a block before them did are counted once (:func:`once`): a
tower in windows has thousands of small operators in every block. What a block takes follows from
its settings and from the shapes that it gets (and from grids, whose numbers are compared).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten
from torch.utils.flop_counter import flop_registry

from foveate.memory.attention import FusedAttention

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

_COMPARE = {_aten.ne.Scalar, _aten.ne.Tensor, _aten.gt.Scalar, _aten.gt.Tensor}
_FEW = 2**16


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
        self._flops += _flops(func, args, kwargs or {}, out)
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
            special = _returned(func, args)
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


def _returned(func: Any, args: tuple[Any, ...]) -> Any:
    """What an operator returns where that has to be told; None of others.

    Which of a few images hold more than padding is asked of their pixels: all of them do.
    """
    if func is _aten.index.Tensor:
        return _chosen(args[0], args[1])
    if func is _aten._grouped_mm.default and (args[0].dim(), args[1].dim()) == (2, 3):
        return args[0].new_empty((args[0].shape[0], args[1].shape[2]), device="meta")
    if func in _COMPARE and args[0].is_meta and args[0].numel() <= _FEW:
        return torch.ones(args[0].shape, dtype=torch.bool, device="cpu")
    return None


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Operations of a matrix product, multiplications and additions, by its shapes; 0 of others."""
    if func is _aten._grouped_mm.default and (args[0].dim(), args[1].dim()) == (2, 3):
        return 2 * int(args[0].numel()) * int(args[1].shape[2])
    count = flop_registry.get(getattr(func, "overloadpacket", None))
    return 0 if count is None else int(count(*args, **kwargs, out_val=out))


def _chosen(x: Tensor, where: list[Tensor | None]) -> Tensor | None:
    """``x[mask]``: as many as a real mask has, all of one without numbers."""
    masks = [place for place, one in enumerate(where) if one is not None]
    if len(masks) != 1:
        return None
    (place,) = masks
    mask = where[place]
    if mask is None or mask.dtype != torch.bool:
        return None
    count = mask.numel() if mask.is_meta else int(mask.sum())
    shape = (*x.shape[:place], count, *x.shape[place + mask.dim() :])
    return x.new_empty(shape, device="meta")


_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)
_NUMBERED = ("layer_idx", "layer_index")  # which block it is, and nothing that it does


@contextmanager
def once(model: nn.Module, but: nn.Module, counting: Counting) -> Iterator[None]:
    """Inside, blocks of lists outside the module ``but`` run once for each kind and shapes."""
    inside = set(but.modules())
    known: dict[Any, Any] = {}
    changed: list[nn.Module] = []
    for each in model.modules():
        if isinstance(each, nn.ModuleList) and each not in inside and len(each) > 1:
            for block in each:
                block.forward = _once(block, counting, known)
                changed.append(block)
    try:
        yield
    finally:
        for block in changed:
            block.__dict__.pop("forward", None)


def _once(block: nn.Module, counting: Counting, known: dict[Any, Any]) -> Callable[..., Any]:
    """Return a block's forward that repeats what is known of the same work."""
    run = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        key = _key(block, (args, kwargs))
        if key is None:
            return run(*args, **kwargs)
        if key in known:
            rise, made, spec = known[key]
            counting.risen(rise)
            return tree_unflatten([one and _like(*one) for one in made], spec)
        before, peak = counting.live, counting.peak
        counting.begin()
        out = run(*args, **kwargs)
        leaves, spec = tree_flatten(out)
        if all(isinstance(one, Tensor) and one.is_meta for one in leaves if one is not None):
            made = [one if one is None else (one.shape, one.stride(), one.dtype) for one in leaves]
            known[key] = counting.peak - before, made, spec
        counting.peak = max(peak, counting.peak)
        return out

    return forward


def _like(shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _key(block: nn.Module, given: Any) -> Any:
    """What the block's work follows from; None where that is not seen."""
    parts: list[Any] = []
    for one in tree_leaves(given):
        if isinstance(one, Tensor):
            numbers = None if one.is_meta else tuple(one.flatten().tolist())
            parts.append((one.shape, one.stride(), one.dtype, numbers))
        elif isinstance(one, _PLAIN):
            parts.append(one)
        else:
            return None
    return type(block), tuple(map(_settings, block.modules())), tuple(parts)


def _settings(module: nn.Module) -> tuple[Any, ...]:
    plain = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, _PLAIN) and name not in _NUMBERED
    }
    shapes = [tuple(one.shape) for one in module.parameters(recurse=False)]
    return (type(module), *plain.items(), *shapes)
