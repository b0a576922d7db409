"""vLLM's options that select Foveate, on a command line or in a file for ``--config``.

Each may appear once. vLLM silently takes the last of two, so the policy in the first would be lost,
and the model would be served uncompressed.
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


class WrittenOption(NamedTuple):
    """One of these options with its value, and its spelling and source as ``written``.

    ``value`` is None if the option comes last, without a value.
    """

    option: str
    value: str | None
    written: str


def split(words: Sequence[str]) -> tuple[list[WrittenOption], list[str]]:
    """Split the words of a command line into these options, in order, and all other words."""
    options: list[WrittenOption] = []
    rest: list[str] = []
    left = iter(words)
    for word in left:
        written, equals, value = word.partition("=")
        option = _option(written)
        if option is None:
            rest.append(word)
        else:
            options.append(WrittenOption(option, value if equals else next(left, None), written))
    return options, rest


def _option(written: str) -> str | None:
    """Return the option that a word names: vLLM takes underscores, prefixes, parts after a dot."""
    flag = written.replace("_", "-").partition(".")[0]
    if not flag.startswith("--") or flag == "--":
        return None
    return next((option for option in (*CLASSES, CONFIG) if option.startswith(flag)), None)


def in_file(words: Sequence[str]) -> Iterator[WrittenOption]:
    """Yield these options from the file that vLLM's ``--config`` names; none if the file cannot be
    read, which vLLM reports itself.
    """
    path = next((b for a, b in pairwise(words) if a == FILE), None)
    if path is None or not Path(path).is_file():
        return
    text = Path(path).read_text(errors="replace")
    for start, end, value in _IN_FILE.findall(text):
        name = f"{start}-{end}"
        # the value of CONFIG may take many lines, so all of the file is searched
        content = text if name == CONFIG[2:] else value
        yield WrittenOption(f"--{name}", content, f"{name} in {path}")


def check_once(words: Sequence[str]) -> None:
    """Refuse an option that appears twice on vLLM's command line, or there and in its file, if one
    of the two concerns Foveate.

    Raises:
        InvalidInput: names both.
    """
    options = [*in_file(words), *split(words)[0]]
    for option in (*CLASSES, CONFIG):
        here = [other for other in options if other.option == option]
        ours = any("foveate" in f"{other.written} {other.value}" for other in here)
        if _count_settings(here) > 1 and ours:
            sources = list(dict.fromkeys(other.written for other in here))
            both = " and ".join(sources) if len(sources) > 1 else f"{option}, {len(here)} times"
            raise InvalidInput(
                f"{both}: vLLM would silently ignore all but the last, and Foveate's settings with "
                "them. Give one."
            )


def _count_settings(options: Sequence[WrittenOption]) -> int:
    """Count how often vLLM sets one option: all parts after a dot are one setting."""
    flags = [option.written for option in options if option.written.startswith("--")]
    parts = [flag for flag in flags if "." in flag]
    return len(options) - len(parts) + bool(parts)
