"""vLLM's options by which it is told to compress, on a command line or in a file for ``--config``.

Each may stand once. vLLM takes the last of two without a word, so the policy in the first would be
lost, and the model served stock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from foveate.errors import InvalidInput

HERE = "foveate.vllm"
CONFIG = "--additional-config"
WORKER, SCHEDULER = "--worker-cls", "--scheduler-cls"
CLASSES = {WORKER: f"{HERE}.Worker", SCHEDULER: f"{HERE}.Scheduler"}
FILE = "--config"
_IN_FILE = re.compile(r"^(worker|scheduler|additional)[-_](cls|config)\s*:\s*(.*)$", re.M)


class GivenOption(NamedTuple):
    """One of these options with its value; ``said`` is how it was written, and where.

    ``value`` is None where the option stands last, without one.
    """

    option: str
    value: str | None
    said: str


def split(words: Sequence[str]) -> tuple[list[GivenOption], list[str]]:
    """Return these options among the words of a command line, in order, and all other words."""
    options: list[GivenOption] = []
    rest: list[str] = []
    left = iter(words)
    for word in left:
        said, equals, value = word.partition("=")
        option = _option(said)
        if option is None:
            rest.append(word)
        else:
            options.append(GivenOption(option, value if equals else next(left, None), said))
    return options, rest


def _option(said: str) -> str | None:
    """Return the option that is meant: vLLM takes underscores, beginnings, parts after a dot."""
    begun = said.replace("_", "-").partition(".")[0]
    if not begun.startswith("--") or begun == "--":
        return None
    return next((one for one in (*CLASSES, CONFIG) if one.startswith(begun)), None)


def in_file(words: Sequence[str]) -> Iterator[GivenOption]:
    """Yield these options in the file that vLLM's ``--config`` names; none where it cannot be read,
    which vLLM says itself.
    """
    place = next((b for a, b in pairwise(words) if a == FILE), None)
    if place is None or not Path(place).is_file():
        return
    text = Path(place).read_text(errors="replace")
    for begun, end, value in _IN_FILE.findall(text):
        whole = text if f"{begun}-{end}" == CONFIG[2:] else value  # its value may take many lines
        yield GivenOption(f"--{begun}-{end}", whole, f"{begun}-{end} in {place}")


def check_once(words: Sequence[str]) -> None:
    """Refuses an option that stands twice on a command line of vLLM's, or there and in its file,
    if one of them has to do with Foveate.

    Raises:
        InvalidInput: names both.
    """
    options = [*in_file(words), *split(words)[0]]
    for option in (*CLASSES, CONFIG):
        here = [one for one in options if one.option == option]
        ours = any("foveate" in f"{one.said} {one.value}" for one in here)
        if _settings(here) > 1 and ours:
            places = list(dict.fromkeys(one.said for one in here))
            both = " and ".join(places) if len(places) > 1 else f"{option}, {len(here)} times"
            raise InvalidInput(
                f"{both}: vLLM takes the last one, and what the others say of Foveate would be "
                "lost without a word. Give one."
            )


def _settings(given: Sequence[GivenOption]) -> int:
    """How often vLLM sets one option: all parts after a dot are one setting."""
    parts = [one for one in given if one.said.startswith("--") and "." in one.said]
    return len(given) - len(parts) + bool(parts)
