"""Counter of the bytes of live tensors while a model runs, without allocating them.

Inside :class:`Counting` the model's own code runs, operator by operator, on PyTorch's "meta"
device: tensors with a shape and a type, but no numbers. Each result is counted until its last
reference is gone, as in an allocator. Models read the numbers of a few small tensors (token ids,
grids of images, positions); these are computed on the CPU.

Blocks of a vision tower that repeat an earlier block's work are counted once (:func:`once`),
because a tower with windows has thousands of small operators in every block. A block's work follows
from its settings and the shapes of its inputs (and from grids, whose numbers are compared).
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
SMALL = 2**20  # limit of elements for a tensor that is computed on the CPU
COUNTS = 2**23  # the same for integers: models read ids and positions of the longest prompts

_aten = torch.ops.aten
_FILLED = {
    _aten.empty.memory_format,
    _aten.full.default,
    _aten.ones.default,
    _aten.zeros.default,
    _aten.new_zeros.default,
}
"""Operators that create a tensor to be written to: models never read its floating-point numbers."""

_COMPARE = {_aten.ne.Scalar, _aten.ne.Tensor, _aten.gt.Scalar, _aten.gt.Tensor}
_FEW = 2**16


class Counting(TorchDispatchMode):
    """Dispatch mode that counts the bytes of storages from creation until they are freed.

    Attributes:
        live: bytes now.
        peak: largest value of ``live`` since :meth:`begin`.
    """

    def __init__(self, fused: FusedAttention | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = self._flops = 0
        self._fused = fused
        self._known: dict[int, Any] = {}

    @property
    def flops(self) -> int:
        """Operations of matrix products so far, including fused attention."""
        return self._flops + (0 if self._fused is None else self._fused.flops)

    def begin(self) -> None:
        """Reset the peak to the bytes that are live now."""
        self.peak = self.live

    def exclude(self, tensors: Iterable[Tensor]) -> None:
        """Exclude these tensors from the count, for example weights."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            self._known[storage._cdata] = storage

    def count(self, tensors: Iterable[Tensor]) -> None:
        """Count these tensors until they are freed."""
        for tensor in tensors:
            self._count(tensor)

    def raise_peak(self, by: int) -> None:
        """Raise the peak to at least ``by`` bytes above ``live``, for work that is not repeated."""
        self.peak = max(self.peak, self.live + by)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = self._run(func, args, kwargs or {})
        self._flops += _flops(func, args, kwargs or {}, out)
        self.count(tensor for tensor in tree_leaves(out) if isinstance(tensor, Tensor))
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
        tensors = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Tensor)]
        if any(tensor.is_meta for tensor in tensors):
            special = _special_result(func, args)
            return _run_on_meta(func, args, kwargs) if special is None else special
        if "device" in kwargs:
            kwargs = {**kwargs, "device": CPU}
        if func._schema.is_mutable or func.is_view or func is _aten._local_scalar_dense.default:
            return func(*args, **kwargs)
        return _run_if_small(func, args, kwargs)


def _run_if_small(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on CPU tensors; on "meta" instead if its result is large."""
    try:
        shapes = _run_on_meta(func, args, kwargs)
    except (NotImplementedError, RuntimeError):  # the output's shape depends on the numbers
        return func(*args, **kwargs)
    outputs = [tensor for tensor in tree_leaves(shapes) if isinstance(tensor, Tensor)]
    written = func in _FILLED and any(tensor.is_floating_point() for tensor in outputs)
    integers = all(tensor.dtype in (torch.int32, torch.int64) for tensor in outputs)
    if written or sum(tensor.numel() for tensor in outputs) > (COUNTS if integers else SMALL):
        return shapes
    return func(*args, **kwargs)


def _run_on_meta(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator on "meta" tensors of the same shapes."""
    if "device" in kwargs or not any(isinstance(leaf, Tensor) for leaf in tree_leaves(args)):
        kwargs = {**kwargs, "device": META}
    bare: Callable[[Tensor], Tensor] = lambda leaf: leaf if leaf.is_meta else leaf.to(META)  # noqa: E731
    args, kwargs = tree_map_only(Tensor, bare, (args, kwargs))
    return func(*args, **kwargs)


def _special_result(func: Any, args: tuple[Any, ...]) -> Any:
    """Return the result of an operator that "meta" tensors do not support; None for others.

    Models compare pixels to find images that are only padding; here no image is.
    """
    if func is _aten.index.Tensor:
        return _masked(args[0], args[1])
    if func is _aten._grouped_mm.default and (args[0].dim(), args[1].dim()) == (2, 3):
        return args[0].new_empty((args[0].shape[0], args[1].shape[2]), device="meta")
    if func in _COMPARE and args[0].is_meta and args[0].numel() <= _FEW:
        return torch.ones(args[0].shape, dtype=torch.bool, device="cpu")
    return None


def _flops(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    """Count the multiplications and additions of a matrix product from its shapes; 0 for others."""
    if func is _aten._grouped_mm.default and (args[0].dim(), args[1].dim()) == (2, 3):
        return 2 * int(args[0].numel()) * int(args[1].shape[2])
    count = flop_registry.get(getattr(func, "overloadpacket", None))
    return 0 if count is None else int(count(*args, **kwargs, out_val=out))


def _masked(x: Tensor, where: list[Tensor | None]) -> Tensor | None:
    """Return ``x[mask]`` on "meta": a mask without numbers counts as all True."""
    masks = [axis for axis, mask in enumerate(where) if mask is not None]
    if len(masks) != 1:
        return None
    (axis,) = masks
    mask = where[axis]
    if mask is None or mask.dtype != torch.bool:
        return None
    count = mask.numel() if mask.is_meta else int(mask.sum())
    shape = (*x.shape[:axis], count, *x.shape[axis + mask.dim() :])
    return x.new_empty(shape, device="meta")


_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device)
_NUMBERED = ("layer_idx", "layer_index")  # a block's number, on which its work does not depend


@contextmanager
def run_once(model: nn.Module, but: nn.Module, counting: Counting) -> Iterator[None]:
    """Run blocks of module lists once per kind and input shapes, except those inside ``but``."""
    inside = set(but.modules())
    known: dict[Any, Any] = {}
    changed: list[nn.Module] = []
    for each in model.modules():
        if isinstance(each, nn.ModuleList) and each not in inside and len(each) > 1:
            for block in each:
                block.forward = _cached_forward(block, counting, known)
                changed.append(block)
    try:
        yield
    finally:
        for block in changed:
            block.__dict__.pop("forward", None)


def _cached_forward(
    block: nn.Module, counting: Counting, known: dict[Any, Any]
) -> Callable[..., Any]:
    """Return a block's forward that reuses results of the same work in ``known``."""
    run = block.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        key = _key(block, (args, kwargs))
        if key is None:
            return run(*args, **kwargs)
        if key in known:
            rise, layouts, spec = known[key]
            counting.raise_peak(rise)
            return tree_unflatten([layout and _like(*layout) for layout in layouts], spec)
        before, peak = counting.live, counting.peak
        counting.begin()
        out = run(*args, **kwargs)
        leaves, spec = tree_flatten(out)
        if all(isinstance(leaf, Tensor) and leaf.is_meta for leaf in leaves if leaf is not None):
            layouts = [
                leaf if leaf is None else (leaf.shape, leaf.stride(), leaf.dtype) for leaf in leaves
            ]
            known[key] = counting.peak - before, layouts, spec
        counting.peak = max(peak, counting.peak)
        return out

    return forward


def _like(shape: Any, strides: Any, dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


def _key(block: nn.Module, arguments: Any) -> Any:
    """Return a key for the block's work; None if an argument cannot be part of a key."""
    parts: list[Any] = []
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, Tensor):
            numbers = None if leaf.is_meta else tuple(leaf.flatten().tolist())
            parts.append((leaf.shape, leaf.stride(), leaf.dtype, numbers))
        elif isinstance(leaf, _PLAIN):
            parts.append(leaf)
        else:
            return None
    return type(block), tuple(map(_settings, block.modules())), tuple(parts)


def _settings(module: nn.Module) -> tuple[Any, ...]:
    plain = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, _PLAIN) and name not in _NUMBERED
    }
    shapes = [tuple(parameter.shape) for parameter in module.parameters(recurse=False)]
    return (type(module), *plain.items(), *shapes)
