"""Which implementation an operator runs: the plain torch reference, or a Triton kernel."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

from foveate.errors import InvalidParameter, MissingPackage

Impl = Literal["reference", "triton"]

_NAMES = get_args(Impl)
_chosen: list[Impl] = ["reference"]  # the latest counts; a ContextVar would break compiled graphs
_modules: dict[str, Any] = {}


@contextmanager
def using(impl: Impl) -> Iterator[None]:
    """Inside, every operator that is not told otherwise runs as ``impl``; restored on the way out.

    The choice holds for the whole process. Nothing falls back to the reference: what a kernel
    cannot do raises.

    Raises:
        InvalidParameter: no implementation of that name.
        MissingPackage: "triton", and Triton is not installed.
    """
    chosen(impl)
    depth = len(_chosen)
    try:
        _chosen.append(impl)  # inside, for an interrupt may fall right behind it
        yield
    finally:
        del _chosen[depth:]


def chosen(impl: Impl | None = None) -> Impl:
    """``impl``, or what :func:`using` says; checked."""
    impl = impl or _chosen[-1]
    if impl not in _NAMES:
        known = " or ".join(map(repr, _NAMES))
        raise InvalidParameter(f"no implementation named {impl!r}: choose {known}.")
    if impl == "triton" and importlib.util.find_spec("triton") is None:
        raise MissingPackage("impl='triton'", "triton", install="pip install triton")
    return impl


def implementation(operator: str, impl: Impl | None) -> Any:
    """The module that does the work: ``OPERATOR.reference``, or ``OPERATOR.triton``, which is
    imported when it is first asked for, as Triton is.
    """
    name = f"{operator}.{_chosen[-1] if impl is None else chosen(impl)}"
    if name not in _modules:
        _modules[name] = importlib.import_module(name)
    return _modules[name]
