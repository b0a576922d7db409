"""A plug-in of pytest: one part of the tests, whose results are written down as they come.

`foveate bench --suite gpu --part tests` runs pytest with ``-p tests.in_parts``, in several
processes side by side: most of the time goes into compiling kernels. It imports no torch.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import pytest

RESULTS = "FOVEATE_TESTS_RESULTS"
"""A file that gets a line for each test that begins and ends. Those it has already do not run."""
PART = "FOVEATE_TESTS_PART"
"""``1/8``: the second of eight parts."""
TOGETHER = "test_far_apart.py"  # its 9 GB are made once
LONGEST = 300  # letters of what a failed test said
STUCK = 17  # the exit status of a process that goes on in another one


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """This part's tests, without those that have begun in a process before."""
    if RESULTS not in os.environ:
        return
    index, count = map(int, os.environ[PART].split("/"))
    begun = {json.loads(line)["test"] for line in _lines(Path(os.environ[RESULTS]))}
    mine = [x for x in items if x.nodeid not in begun and _number(x) % count == index]
    config.hook.pytest_deselected(items=[x for x in items if x not in mine])
    items[:] = mine


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _number(item: pytest.Item) -> int:
    name = item.path.name if item.path.name == TOGETHER else item.nodeid
    return zlib.crc32(name.encode())


def pytest_runtest_logstart(nodeid: str) -> None:
    """A test that ends its process is known by having begun."""
    _write({"test": nodeid, "begun": True})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What became of a test. An error of CUDA's stays with a process: the next one goes on."""
    if report.when == "call" or report.outcome != "passed":
        said = "" if report.passed else _said(report)
        _write(
            {
                "test": report.nodeid,
                "outcome": report.outcome,
                "seconds": round(report.duration, 2),
                "said": said,
            }
        )
        if report.failed and "CUDA error" in report.longreprtext and RESULTS in os.environ:
            os._exit(STUCK)


def _said(report: pytest.TestReport) -> str:
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    said = crash.message if crash is not None else report.longreprtext.strip()
    return " ".join(said.split())[:LONGEST]


def _write(line: dict[str, Any]) -> None:
    if path := os.environ.get(RESULTS):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
