"""Tests of a checkout that can run on a GPU: kernels, models against their oracle, CUDA graphs.

pytest runs them in several processes, because most of the time goes into compiling.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.models import SuiteSetting
from benchmarks.gpu.rows import Row, table
from benchmarks.output import CHECKOUT
from foveate.errors import InvalidInput

TESTS = (
    "tests/conformance/test_on_device.py",
    "tests/backends/test_captured.py",
    "tests/ops/kernels",
)
LEAVE_OUT = "tests/ops/kernels/test_ahead.py"  # compiles for other GPUs
QUICK = (
    "tests/conformance/test_on_device.py::test_a_model_there_answers_like_the_oracle_here"
    "[llama-snapkv-reference]",
    "tests/backends/test_captured.py",
    "tests/ops/kernels/test_compaction.py::test_nothing_kept_is_nothing_copied",
)
AT_ONCE = 12  # processes: each compiles on a core, and takes half a GB of the GPU's memory
STUCK = 17  # exit status after a CUDA failure that blocks the process; a new process continues
PATIENCE = 0.1  # seconds between two polls


@dataclass
class CheckWorker:
    """Process that runs its part of the tests, restarted after a crash; earlier results stay."""

    command: Sequence[str]
    environment: dict[str, str]
    results: Path
    taken: int = 0
    begun: list[str] = field(default_factory=list)
    process: Any = None

    def start(self) -> None:
        """Start the process in the checkout, where pytest imports the tests."""
        output = self.results.with_suffix(".txt").open("w")
        with output:
            self.process = subprocess.Popen(
                self.command, cwd=CHECKOUT, env=self.environment, stdout=output, stderr=output
            )

    def news(self) -> Iterator[Row]:
        """Yield results of tests that ended since the last call."""
        if not self.results.exists():
            return
        lines = self.results.read_bytes().split(b"\n")[:-1]  # the rest is not written completely
        for line in lines[self.taken :]:
            self.taken += 1
            message = json.loads(line)
            if "begun" in message:
                self.begun.append(message["test"])
            else:
                self.begun = [name for name in self.begun if name != message["test"]]
                yield _row(message)

    def ended(self) -> Iterator[Row]:
        """Yield the failure that ended the process, if any; restart it if tests may be left."""
        status = self.process.returncode
        done, self.process = status in (0, 1, 5), None  # pytest: passed, failed, no tests
        if done:
            return
        if not self.begun and status != STUCK:
            last = self.results.with_suffix(".txt").read_text(errors="replace").split("\n")[-4:]
            yield {"test": "(pytest)", "failed": f"status {status}: {' '.join(last).strip()}"}
            return
        for name in self.begun:
            yield {"test": name, "failed": f"its process ended with status {status}"}
        self.begun.clear()
        self.start()


def rows(setting: SuiteSetting) -> Iterator[Row]:
    """Yield a row for every test as it ends.

    Raises:
        InvalidInput: Foveate does not run from a checkout, or pytest is missing.
    """
    if why := missing():
        raise InvalidInput(why)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        workers = _workers(setting, Path(folder))
        for worker in workers:
            worker.start()
            stack.callback(_stop, worker)
        while any(worker.process is not None for worker in workers):
            for worker in workers:
                over = worker.process is not None and worker.process.poll() is not None
                yield from worker.news()
                if over:
                    yield from worker.ended()
            time.sleep(PATIENCE)


def missing() -> str | None:
    """Return the missing requirement of the tests, or None."""
    if not (CHECKOUT / "tests" / "in_parts.py").exists():
        return "the tests are not installed: run the suite from a checkout of Foveate."
    try:
        import pytest  # noqa: F401
    except ImportError:
        return "the tests need pytest: pip install pytest."
    return None


def _workers(setting: SuiteSetting, folder: Path) -> list[CheckWorker]:
    count = max(1, min(AT_ONCE, (os.cpu_count() or 1) - 2)) if setting.on_gpu else 1
    command = [sys.executable, "-m", "pytest", "-p", "tests.in_parts", "-p", "no:cacheprovider"]
    command += ["-q", "-W", "default", "--deselect", LEAVE_OUT]
    command += QUICK if setting.quick else TESTS
    paths = [str(CHECKOUT), str(CHECKOUT / "src"), str(CHECKOUT / "demo_model")]
    environment = os.environ | {
        "FOVEATE_TESTS_DEVICE": setting.device,
        "FOVEATE_TESTS_CHECKED": "0",
        "HF_HUB_OFFLINE": "1",
        "NVIDIA_TF32_OVERRIDE": "0",  # TF32 would round convolutions of vision towers to 10 bits
        "OMP_NUM_THREADS": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # other installed packages may bring plugins
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        "TRITON_INTERPRET": "0" if setting.on_gpu else "1",
    }
    return [
        CheckWorker(
            command,
            environment
            | {
                "FOVEATE_TESTS_PART": f"{i}/{count}",
                "FOVEATE_TESTS_RESULTS": str(folder / f"{i}.jsonl"),
            },
            folder / f"{i}.jsonl",
        )
        for i in range(count)
    ]


def _stop(worker: CheckWorker) -> None:
    if worker.process is not None:
        worker.process.kill()
        worker.process.wait()


def _row(message: dict[str, Any]) -> Row:
    row = {"test": message["test"], "seconds": message["seconds"]}
    if message["outcome"] == "skipped":
        return row | {"not_run": message["said"]}
    if message["outcome"] == "failed":
        return row | {"failed": message["said"]}
    return row | {"ok": True}


def wrong(measured: Sequence[Row]) -> list[Row]:
    """Return the rows that failed."""
    return [row for row in measured if "failed" in row]


def page(measured: Sequence[Row]) -> list[str]:
    """Return counts, failures, and reasons of tests that did not run."""
    failed = wrong(measured)
    left = [row["not_run"] for row in measured if "not_run" in row]
    lines = [
        f"{sum('ok' in row for row in measured)} tests passed, {len(failed)} failed; {len(left)} "
        "not run here."
    ]
    if failed:
        lines += ["", *table(failed, {"test": "test", "said": "what it said"})]
    lines += [f"* {left.count(why)} not run: {why}" for why in dict.fromkeys(left)]
    return lines
