"""Kills runs of ``foveate eval`` at random moments, each time going on where the last one stopped.

``python -m tests.eval.killing KILLS OUT ARGUMENT...``: a process that has all modules loaded, and
whose children are the runs. It prints how many of them were killed; the last one is not.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from random import Random

from foveate.cli.app import app


def started(arguments: list[str]) -> int:
    """The process of a run."""
    if child := os.fork():
        return child
    code: object = 1
    try:
        code = app(["eval", *arguments], standalone_mode=False)
    finally:
        os._exit(code if isinstance(code, int) else 0)


def rows(out: Path) -> int:
    path = out / "rows.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


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
    """All of it."""
    kills, out, arguments = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    random, done = Random(0), 0
    for _ in range(kills):
        resume = ["--resume"] if (out / "run.json").exists() else []
        done += killed(started(["--out", str(out), *arguments, *resume]), out, random)
    last = started(["--out", str(out), *arguments, "--resume"])
    _, status = os.waitpid(last, 0)
    print(done)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
