"""Errors of Foveate as the last line of the ``vllm`` command, as in ``foveate``'s commands."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

from foveate.errors import FoveateError


def print_errors_last() -> None:
    """Print Foveate's errors as the last line of the ``vllm`` command, with exit status 2 and no
    traceback. In other programs they remain ordinary exceptions.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    module = str(getattr(main, "name", ""))
    own = Path(sys.argv[0]).name == "vllm" or module.startswith("vllm.")
    if own and sys.excepthook is not _print_error:
        sys.excepthook = _print_error


def _print_error(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if not issubclass(kind, FoveateError):
        sys.__excepthook__(kind, error, trace)
        return
    print(f"Error: {error}", file=sys.stderr)
    raise SystemExit(2)
