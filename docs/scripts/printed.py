"""Writes what commands print on the demo model, in 80 columns; ``--check`` runs them and compares.

python docs/scripts/printed.py [--check] [COMMAND...]

Where a page shows ``$ foveate ...`` in a block of text, the lines below are what it printed: all
are run in one empty folder, page by page. Times and what belongs to a machine are not compared.
Some minutes; COMMAND chooses by what stands after ``foveate``.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from typer.testing import CliRunner

from foveate.cli.app import app

DOCS = Path(__file__).parents[1]
PAGES = (DOCS / "start.md", DOCS / "howto" / "commands.md")
BLOCK = re.compile(r"```text\n\$ (?P<command>foveate .*)\n(?P<printed>[\s\S]*?)```")
COLUMNS = 80
OF_A_MACHINE = ("doctor", "serve")  # what is installed, and where
TIMED = ("run", "bench")


def printed(command: str) -> str:
    """What a command writes to stdout, which is a pipe, in the current folder."""
    os.environ["COLUMNS"] = str(COLUMNS)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    if done.exit_code:
        raise SystemExit(f"{command}: {done.output}")
    text = done.stdout.replace(sys.executable, "python")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def stable(command: str, text: str) -> str:
    """What is the same on every machine: no times, no versions and places."""
    name = command.split()[1]
    if name in OF_A_MACHINE:
        return "\n".join(line.split()[0] for line in text.splitlines() if line[:1].isalpha())
    if name in TIMED:
        text = re.sub(r"\d+\.\d+|AMD.*threads?|with \d+ threads?", "#", text)
    return " ".join(text.split())


def shown(page: Path, keep: Callable[[str], bool] = lambda _: True) -> list[tuple[str, str]]:
    """The commands that a page shows, each with what it says that they print."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [(one["command"], one["printed"]) for one in found if keep(one["command"])]


def main(words: Sequence[str]) -> int:
    """Runs the commands, and rewrites the pages or says what is out of date."""
    names = [word for word in words if word != "--check"]
    old = 0
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            for command, before in shown(page, lambda c: not names or c.split()[1] in names):
                after = printed(command)
                if "--check" in words and stable(command, after) != stable(command, before):
                    old += 1
                    print(f"{page.name}: {command} prints something else:\n{after}")
                text = text.replace(f"$ {command}\n{before}```", f"$ {command}\n{after}```")
            if "--check" not in words:
                page.write_text(text, encoding="utf-8")
        os.chdir(DOCS)
    return min(old, 1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
