"""Shapes and types are checked at every call while the tests run. FOVEATE_TESTS_CHECKED=0 halves
their time.
"""

import os
from importlib.util import find_spec

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRITON_INTERPRET", "1")  # read by Triton's import: kernels run on the CPU

if os.environ.get("FOVEATE_TESTS_CHECKED") != "0" and find_spec("beartype") is not None:
    from tests import checked

    checked.install()

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny models are fastest on one thread."""
    torch.set_num_threads(1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line for all tests that a missing browser skips, with the way to get it."""
    skipped = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    without = [reason for reason in skipped if "no browser" in reason]
    if without:
        reason = without[0].split("no browser: ")[1]
        terminalreporter.write_line(f"{len(without)} tests of pages were skipped: {reason}")
