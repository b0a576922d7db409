"""Everything that Foveate raises on purpose.

    FoveateError
    ├── InvalidBudget        a budget that cannot be met                        (ValueError)
    ├── InvalidParameter     a method's or stage's parameter is out of range    (ValueError)
    ├── InvalidInput         a prompt, image, mask or tensor that cannot be read (ValueError)
    ├── InvalidSpec          a spec string that cannot be parsed                (ValueError)
    ├── UnknownMethod        no method or stage of that name                    (LookupError)
    ├── ModelNotFound        no model at that place                             (LookupError)
    ├── UnsupportedModel     a model whose cache cannot be compressed exactly   (TypeError)
    ├── UnsupportedCache     a cache that is static, foreign or already closed  (TypeError)
    ├── AlreadyCompressing   a second ``compress`` block on one model           (RuntimeError)
    ├── NothingCompressed    asked for results before a prompt was compressed   (RuntimeError)
    ├── MissingModality      the policy needs to know which tokens are visual   (RuntimeError)
    ├── UnsupportedPolicy    a policy that a backend cannot carry out exactly   (TypeError)
    ├── UnsupportedEngine    an inference engine's version or setting is unknown (RuntimeError)
    ├── UnsupportedKernel    a tensor that a Triton kernel cannot work on       (TypeError)
    ├── MissingPackage       something that is asked for needs an optional package (ImportError)
    ├── BrokenPackage        an installed package that cannot be imported       (ImportError)
    ├── ClusterFailed        no cluster to run on, or its workers do not last   (RuntimeError)
    ├── CannotWrite          a file that the disk, or its folder, does not take  (OSError)
    ├── CacheMismatch        a saved cache of another model, tokenizer, policy  (RuntimeError)
    └── ProfileMismatch      a profile of another model, method or budget       (RuntimeError)

Each message names the offending value and the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class FoveateError(Exception):
    """Base of every error that Foveate raises on purpose."""


class InvalidBudget(FoveateError, ValueError):
    """A budget that cannot be met: zero, negative, NaN, over 100 %, or below what is protected."""


class InvalidParameter(FoveateError, ValueError):
    """A parameter of a method or a stage that is out of its range."""


class InvalidInput(FoveateError, ValueError):
    """A prompt, an image, a mask or a tensor that cannot be used."""


class InvalidSpec(FoveateError, ValueError):
    """A spec string that does not parse, or that names an unknown parameter."""


class UnknownMethod(FoveateError, LookupError):
    """No method (or stage) of that name."""


class ModelNotFound(FoveateError, LookupError):
    """No model, or no weights, at the place given."""


class UnsupportedModel(FoveateError, TypeError):
    """A model whose cache cannot be compressed exactly."""


class UnsupportedCache(FoveateError, TypeError):
    """A cache that cannot be compressed: static, quantised, filled elsewhere, or already closed."""


class AlreadyCompressing(FoveateError, RuntimeError):
    """A second ``compress`` block on a model that is inside one."""


class NothingCompressed(FoveateError, RuntimeError):
    """Results were asked for before any prompt was compressed."""


class MissingModality(FoveateError, RuntimeError):
    """The policy needs to know which tokens are visual, and nothing tells."""


class UnsupportedPolicy(FoveateError, TypeError):
    """A policy that this backend cannot carry out exactly."""


class UnsupportedEngine(FoveateError, RuntimeError):
    """A version of an inference engine, or a setting of it, that Foveate cannot work with."""


class UnsupportedKernel(FoveateError, TypeError):
    """A Triton kernel was asked for, and this device, type or head size is not one that it does."""


class MissingPackage(FoveateError, ImportError):
    """Something that was asked for needs a package that is not installed."""

    def __init__(self, what: str, package: str, extra: str = "", install: str = ""):
        """``install`` says how to get a package that no extra brings."""
        how = install or f"pip install 'foveate[{extra}]'"
        super().__init__(f"{what} needs the package {package!r}: {how}.")
        self.install = how
        self._parts = what, package, extra, install

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._parts


class BrokenPackage(FoveateError, ImportError):
    """A package that is installed and cannot be imported, such as a build for another torch."""


class ClusterFailed(FoveateError, RuntimeError):
    """No cluster to run on, one with too little room, or one whose workers are lost or differ."""


class CannotWrite(FoveateError, OSError):
    """A file that cannot be written: a full disk, no permission, no such folder."""


class CacheMismatch(FoveateError, RuntimeError):
    """A saved cache that belongs to another model, tokenizer or policy."""


class ProfileMismatch(FoveateError, RuntimeError):
    """A profile that was measured on another model, for another method, or at another budget."""


def suggest(name: str, known: Iterable[str]) -> str:
    """A sentence that helps: the closest known name if there is one, otherwise all of them."""
    names = sorted(known)
    alike = {_bare(each): each for each in names}  # titles write "SnapKV" and "LOOK-M"
    close = difflib.get_close_matches(_bare(name), alike, n=1)
    return f"Did you mean {alike[close[0]]!r}?" if close else f"Known: {', '.join(names)}."


def _bare(name: str) -> str:
    """A name without what titles and code write differently."""
    return name.lower().replace("-", "_")
