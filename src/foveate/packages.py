"""Install commands for packages beside PyTorch, and errors for broken builds of its packages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from traceback import walk_tb

from foveate.errors import BrokenPackage

OF_PYTORCH = ("torchvision", "torchaudio")
"""Packages whose builds fit one release of torch alone."""


def pip_line(packages: list[str]) -> str:
    """Return the commands that install packages. PyTorch's own come from its index, for the
    installed build of torch: PyPI has another build, which would replace it.
    """
    parts = [f"pip install {' '.join(p for p in packages if p not in OF_PYTORCH)}"]
    if built := [name for name in packages if name in OF_PYTORCH]:
        release, _, build = version("torch").partition("+")
        line = f"pip install {' '.join(built)} torch=={release}"
        if build:
            line += f" --index-url https://download.pytorch.org/whl/{build}"
        parts = [line, *(parts if len(built) < len(packages) else ())]
    return " && ".join(parts)


def broken_package(error: BaseException) -> BrokenPackage | None:
    """Return an error that names the package of PyTorch whose import raised ``error``, and the
    command to replace it; None if no such import failed.
    """
    for each in _chain(error):
        frames = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(each.__traceback__)]
        modules = {str(module).partition(".")[0] for module in frames}
        for name in OF_PYTORCH:
            # Python removes a module whose import failed: one that is loaded did not cause this
            if name in modules and name not in sys.modules:
                line = (str(each).strip().splitlines() or [type(each).__name__])[0]
                return BrokenPackage(
                    f"{name} {version(name)} cannot be imported beside torch {version('torch')} "
                    f"({line}): it is built for another version of torch. Replace it: pip "
                    f"uninstall -y {name} && {pip_line([name])}."
                )
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
