"""Errors that Foveate raises on purpose.

    FoveateError
    ├── InvalidBudget        a budget that cannot be met                        (ValueError)
    ├── InvalidParameter     a method's or stage's parameter is out of range    (ValueError)
    ├── InvalidInput         a prompt, image, mask or tensor that cannot be read (ValueError)
    ├── InvalidSpec          a spec string that cannot be parsed                (ValueError)
    ├── UnknownMethod        no method or stage of that name                    (LookupError)
    ├── ModelNotFound        no model at that location                          (LookupError)
    ├── UnsupportedModel     a model whose cache cannot be compressed exactly   (TypeError)
    ├── UnsupportedCache     a cache that is static, foreign or already closed  (TypeError)
    ├── AlreadyCompressing   a second ``compress`` block on one model           (RuntimeError)
    ├── NothingCompressed    results were read before a prompt was compressed   (RuntimeError)
    ├── MissingModality      the policy needs to know which tokens are visual   (RuntimeError)
    ├── UnsupportedPolicy    a policy that a backend cannot carry out exactly   (TypeError)
    ├── UnsupportedEngine    an unsupported version or setting of an engine     (RuntimeError)
    ├── UnsupportedKernel    a tensor that a Triton kernel does not support     (TypeError)
    ├── MissingPackage       an optional package that is not installed          (ImportError)
    ├── BrokenPackage        an installed package that cannot be imported       (ImportError)
    ├── ClusterFailed        no cluster to run on, or its workers were lost     (RuntimeError)
    ├── ServerFailed         a server that cannot be reached, or does not answer (RuntimeError)
    ├── CannotWrite          a file that cannot be written                      (OSError)
    ├── CacheMismatch        a saved cache of another model, tokenizer, policy  (RuntimeError)
    └── ProfileMismatch      a profile of another model, method or budget       (RuntimeError)

Each message names the offending value, and what to do instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class FoveateError(Exception):
    """Base of every error that Foveate raises on purpose."""


class InvalidBudget(FoveateError, ValueError):
    """A budget that cannot be met: zero, negative, NaN, over 100 %, or below protected tokens."""


class InvalidParameter(FoveateError, ValueError):
    """A parameter of a method or a stage that is out of its range."""


class InvalidInput(FoveateError, ValueError):
    """A prompt, an image, a mask or a tensor that cannot be used."""


class InvalidSpec(FoveateError, ValueError):
    """A spec string that does not parse, or that names an unknown parameter."""


class UnknownMethod(FoveateError, LookupError):
    """No method (or stage) of that name."""


class ModelNotFound(FoveateError, LookupError):
    """No model, or no weights, at that location."""


class UnsupportedModel(FoveateError, TypeError):
    """A model whose cache cannot be compressed exactly."""


class UnsupportedCache(FoveateError, TypeError):
    """A cache that cannot be compressed: static, quantised, filled elsewhere, or already closed."""


class AlreadyCompressing(FoveateError, RuntimeError):
    """A second ``compress`` block on a model that is inside one."""


class NothingCompressed(FoveateError, RuntimeError):
    """Results that were read before any prompt was compressed."""


class MissingModality(FoveateError, RuntimeError):
    """Unknown visual tokens under a policy that needs to know them."""


class UnsupportedPolicy(FoveateError, TypeError):
    """A policy that this backend cannot carry out exactly."""


class UnsupportedEngine(FoveateError, RuntimeError):
    """A version or a setting of an inference engine that Foveate does not support."""


class UnsupportedKernel(FoveateError, TypeError):
    """A device, dtype or head size that the requested Triton kernel does not support."""


class MissingPackage(FoveateError, ImportError):
    """A package that is needed and not installed."""

    def __init__(self, what: str, package: str, extra: str = "", install: str = ""):
        """Build the message. ``install`` is the command for a package that is in no extra."""
        how = install or f"pip install 'foveate[{extra}]'"
        super().__init__(f"{what} needs the package {package!r}: {how}.")
        self.install = how
        self._parts = what, package, extra, install

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._parts


class BrokenPackage(FoveateError, ImportError):
    """An installed package that cannot be imported, such as a build for another torch."""


class ClusterFailed(FoveateError, RuntimeError):
    """No cluster to run on, too little room on it, or workers that were lost or differ."""


class ServerFailed(FoveateError, RuntimeError):
    """A server that cannot be reached, or that does not answer a request."""


class CannotWrite(FoveateError, OSError):
    """A file that cannot be written: a full disk, no permission, no such folder."""


class CacheMismatch(FoveateError, RuntimeError):
    """A saved cache that belongs to another model, tokenizer or policy."""


class ProfileMismatch(FoveateError, RuntimeError):
    """A profile that was measured on another model, for another method, or at another budget."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return a hint: the known name closest to ``name``, or all known names if none is close."""
    names = sorted(known)
    alike = {_bare(each): each for each in names}  # titles write "SnapKV" and "LOOK-M"
    close = difflib.get_close_matches(_bare(name), alike, n=1)
    return f"Did you mean {alike[close[0]]!r}?" if close else f"Known: {', '.join(names)}."


def _bare(name: str) -> str:
    """Normalise case and hyphens, which differ between papers' titles and code."""
    return name.lower().replace("-", "_")
