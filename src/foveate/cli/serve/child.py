"""Runner of a module that ends with its parent process: the server of ``foveate serve``.

    python -m foveate.cli.serve.child FOLDER MODULE ARGUMENTS

Standard input is a pipe whose other end only the parent has, so it closes when the parent dies for
any reason. Then FOLDER is removed, and the process is terminated, at last killed.
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
"""Seconds that a server has to end after SIGTERM."""


def main() -> None:
    """Run the module as ``python -m`` does."""
    _, folder, *sys.argv = sys.argv  # the module sees its own name and arguments
    watch = Watch(folder)
    watch.start()
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    finally:
        if watch.alone.is_set():
            watch.remove()


class Watch(threading.Thread):
    """Thread that waits for the parent's end, then removes ``folder`` ("": none) and ends."""

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
        os.killpg(os.getpid(), signal.SIGKILL)  # kills the engine, too: it is in the same group

    def remove(self) -> None:
        """Remove the folder of metrics, which nobody reads any more."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


if __name__ == "__main__":
    main()
