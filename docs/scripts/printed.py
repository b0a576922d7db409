"""Output of commands in the docs, on the demo model in 80 columns; ``--check`` only compares.

python docs/scripts/printed.py [--check] [COMMAND...]

Lines below ``$ foveate ...`` in a block of text are replaced by the command's output. All commands
run in one empty folder, in the pages' order. Times and details of the machine are not compared.
Takes some minutes; COMMAND limits it to those subcommands of ``foveate``, e.g. ``run``.
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
OF_A_MACHINE = ("doctor", "serve")  # their output depends on installed packages and paths
TIMED = ("run", "bench")


def printed(command: str) -> str:
    """Run a command in the current folder and return its stdout, as it writes to a pipe."""
    os.environ["COLUMNS"] = str(COLUMNS)
    done = CliRunner().invoke(app, shlex.split(command)[1:])
    if done.exit_code:
        raise SystemExit(f"{command}: {done.output}")
    text = done.stdout.replace(sys.executable, "python")
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def stable(command: str, text: str) -> str:
    """Return the output that is equal on every machine: no times, versions or paths."""
    name = command.split()[1]
    if name in OF_A_MACHINE:
        return "\n".join(line.split()[0] for line in text.splitlines() if line[:1].isalpha())
    if name in TIMED:
        text = re.sub(r"\d+\.\d+|AMD.*threads?|with \d+ threads?", "#", text)
    return " ".join(text.split())


def examples(page: Path, keep: Callable[[str], bool] = lambda _: True) -> list[tuple[str, str]]:
    """Return the commands on a page, each with its output there."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [(block["command"], block["printed"]) for block in found if keep(block["command"])]


def main(words: Sequence[str]) -> int:
    """Run the commands; rewrite the pages, or with --check print outdated output."""
    names = [word for word in words if word != "--check"]
    old = 0
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            for command, before in examples(page, lambda c: not names or c.split()[1] in names):
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
