"""Runs the census: ``python -m tests.census [--write] [NAME ...]``; all types if none is named.

With ``--write`` what was found goes into verdicts.json, under the release of transformers, and from
there into docs/models.md (``python docs/scripts/tables.py``). Exits with 1 if a type is neither
exact nor refused by name.
"""

from __future__ import annotations

import sys
import traceback

import transformers
from transformers import logging

from . import IMAGE_TEXT, TEXT
from .check import limited
from .known import read, write
from .verdicts import Verdict, verdict

SECONDS = 300


def main(arguments: list[str]) -> int:
    """Prints a line for each type."""
    logging.set_verbosity_error()
    names = [name for name in arguments if name != "--write"]
    found = []
    for name in names or [*IMAGE_TEXT, *TEXT]:
        found.append(judged(name))
        print(*found[-1], sep=" | ", flush=True)
    if "--write" in arguments:
        known = read()
        known.setdefault(transformers.__version__, {}).update({each.name: each for each in found})
        write(known)
    return int(any(each.kind in ("wrong", "foreign") for each in found))


def judged(name: str) -> Verdict:
    """The verdict; a traceback that is none of Foveate's is one, too."""
    try:
        with limited(SECONDS):
            return verdict(name)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{where.filename.rsplit('/', 1)[-1]}:{where.lineno}"
        return Verdict(name, "foreign", f"{type(error).__name__}: {error} ({place})"[:300])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
