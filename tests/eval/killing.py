"""Kills runs of a command at random moments, each time going on where the last one stopped.

``python -m tests.eval.killing COMMAND KILLS OUT ARGUMENT...``: a process that has all modules
loaded, and whose children are the runs. It prints how many of them were killed; the last one is
not.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path
from random import Random

from foveate.cli.app import app


def started(arguments: list[str]) -> int:
    """The process of a run."""
    if child := os.fork():
        return child
    code: object = 1
    try:
        code = app(arguments, standalone_mode=False)
    except BaseException:  # nobody else says what ended it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0)


def rows(out: Path) -> int:
    """Of an evaluation, or of all models of a reproduction; not of all that is below: folders of
    data are renamed meanwhile.
    """
    found = (path for where in ("rows.jsonl", "rows/*/rows.jsonl") for path in out.glob(where))
    return sum(path.read_bytes().count(b"\n") for path in found)


def killed(child: int, out: Path, random: Random) -> bool:
    """Whether the run was killed before it came to its end: after a random number of rows, or after
    a random time.
    """
    enough, until = rows(out) + random.randint(0, 3), time.monotonic() + random.uniform(0.02, 2)
    while rows(out) < enough and time.monotonic() < until:
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.03))
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def main() -> None:
    """All of it; ``eval`` is told to go on, as other commands do by themselves."""
    command, kills, out, arguments = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
    random, done = Random(0), 0
    asked = [command, "--out", str(out), *arguments]
    goes_on = ["--resume"] if command == "eval" else []
    for _ in range(kills):
        resume = goes_on if (out / "run.json").exists() else []
        done += killed(started([*asked, *resume]), out, random)
    last = started([*asked, *goes_on])
    _, status = os.waitpid(last, 0)
    print(done)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
