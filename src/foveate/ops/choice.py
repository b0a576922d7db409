"""Which implementation an operator runs: the plain torch reference, or a Triton kernel."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, get_args

from foveate.core.errors import InvalidParameter, MissingPackage

Impl = Literal["reference", "triton"]

_chosen: ContextVar[Impl] = ContextVar("foveate_ops_impl", default="reference")


@contextmanager
def using(impl: Impl) -> Iterator[None]:
    """Inside, every operator that is not told otherwise runs as ``impl``; restored on the way out.

    The choice belongs to the thread (or task) that made it. Nothing falls back to the reference:
    what a kernel cannot do raises.

    Raises:
        InvalidParameter: no implementation of that name.
        MissingPackage: "triton", and Triton is not installed.
    """
    chosen(impl)
    token = _chosen.set(impl)
    try:
        yield
    finally:
        _chosen.reset(token)


def chosen(impl: Impl | None = None) -> Impl:
    """``impl``, or what :func:`using` says; checked."""
    impl = impl or _chosen.get()
    if impl not in get_args(Impl):
        known = " or ".join(map(repr, get_args(Impl)))
        raise InvalidParameter(f"no implementation named {impl!r}: choose {known}.")
    if impl == "triton" and importlib.util.find_spec("triton") is None:
        raise MissingPackage("impl='triton'", "triton", install="pip install triton")
    return impl


def implementation(operator: str, impl: Impl | None) -> Any:
    """The module that does the work: ``OPERATOR.reference``, or ``OPERATOR.triton``, which is
    imported when it is first asked for, as Triton is.
    """
    return importlib.import_module(f"{operator}.{chosen(impl)}")
