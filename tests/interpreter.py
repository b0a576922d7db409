"""Which Triton's interpreter can run kernels."""

from __future__ import annotations

import os
from importlib.metadata import version
from importlib.util import find_spec

from packaging.version import Version


def missing() -> str | None:
    """Why kernels cannot run here, if so."""
    if find_spec("triton") is None:
        return "Triton is not installed; `make test` installs it on Linux"
    if os.environ.get("TRITON_INTERPRET") != "1":
        return None  # on a GPU
    triton, numpy = version("triton"), version("numpy")
    if Version(triton) < Version("3.7") and Version(numpy) >= Version("2.4"):
        return f"the interpreter of Triton {triton} needs numpy below 2.4; this is {numpy}"
    return None
