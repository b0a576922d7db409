"""A module that runs as under ``python -m``, and ends with its parent: ``foveate serve``'s server.

    python -m foveate.cli.serve.watched FOLDER MODULE ARGUMENTS

Standard input is a pipe whose other end only the parent has. It is closed when the parent is gone,
however it went; then FOLDER is removed, and the module is asked to end, and made to.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
import threading
import time

_STDIN = 0
GRACE = 5.0
"""Seconds in which a server may end by itself."""


def main() -> None:
    """Runs the module."""
    _, folder, *sys.argv = sys.argv  # what the module then finds there
    watch = Watch(folder)
    watch.start()
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    finally:
        if watch.alone.is_set():
            watch.remove()


class Watch(threading.Thread):
    """Waits for the parent's end. ``folder`` is what to remove then; "" is none."""

    def __init__(self, folder: str):
        super().__init__(daemon=True)
        self._folder = folder
        self.alone = threading.Event()

    def run(self) -> None:
        while os.read(_STDIN, 1):  # nothing is ever sent
            pass
        self.alone.set()
        self.remove()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        self.remove()
        os.killpg(os.getpid(), signal.SIGKILL)  # and the engine, which is of the same group

    def remove(self) -> None:
        """Whoever writes there loses what it counts: nobody is left to read it."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


if __name__ == "__main__":
    main()
