"""Choice of an operator's implementation: the plain torch reference, or a Triton kernel."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, ParamSpec, TypeVar, get_args

from foveate.errors import InvalidParameter, MissingPackage

Impl = Literal["reference", "triton"]

_NAMES = get_args(Impl)
_chosen: list[Impl] = ["reference"]  # the last one counts; a ContextVar would break compiled graphs
_kernels: dict[str, Callable[..., Any]] = {}
P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def using(impl: Impl) -> Iterator[None]:
    """Set the default implementation of all operators inside a ``with`` block.

    It applies to the whole process. There is no fallback to the reference: unsupported tensors
    raise.

    Raises:
        InvalidParameter: no implementation has that name.
        MissingPackage: ``impl`` is "triton", and Triton is not installed.
    """
    chosen(impl)
    depth = len(_chosen)
    try:
        _chosen.append(impl)  # inside the try: an interrupt may follow directly
        yield
    finally:
        del _chosen[depth:]


def chosen(impl: Impl | None = None) -> Impl:
    """Return ``impl``, or the default set by :func:`using`, after checking it."""
    impl = impl or _chosen[-1]
    if impl not in _NAMES:
        known = " or ".join(map(repr, _NAMES))
        raise InvalidParameter(f"no implementation named {impl!r}: choose {known}.")
    if impl == "triton" and importlib.util.find_spec("triton") is None:
        raise MissingPackage("impl='triton'", "triton", install="pip install triton")
    return impl


def operator(reference: Callable[P, R]) -> Callable[P, R]:
    """Turn a reference into an operator that may run a Triton kernel instead.

    The kernel is the function of the same name in the module of the same name in
    ``foveate.ops.kernels``. The reference has a keyword ``impl``, which it ignores: "reference",
    "triton", or None for the default of :func:`using`.

    Under "triton" an operator raises:

        * UnsupportedKernel: tensors that the kernel does not take.
        * MissingPackage: Triton is not installed.
    """
    module, name = reference.__module__.rpartition(".")[2], reference.__name__

    @functools.wraps(reference)
    def run(*args: P.args, **options: P.kwargs) -> R:
        impl: Any = options.pop("impl", None)
        if (_chosen[-1] if impl is None else chosen(impl)) == "reference":
            return reference(*args, **options)
        if name not in _kernels:  # Triton is imported when it is first needed
            kernels = importlib.import_module(f"foveate.ops.kernels.{module}")
            _kernels[name] = getattr(kernels, name)
        result: R = _kernels[name](*args, **options)
        return result

    return run
