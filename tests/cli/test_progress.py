"""Long work says how far it is: a bar on a terminal, a line now and then in a pipe."""

from __future__ import annotations

import pytest

from foveate.cli import console


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What time it is, as its first number."""
    at = [0.0]
    monkeypatch.setattr(console, "monotonic", lambda: at[0])
    return at


@pytest.mark.parametrize("hidden", [False, True])
def test_a_pipe_gets_a_line_now_and_then(
    clock: list[float], capsys: pytest.CaptureFixture[str], hidden: bool
) -> None:
    with console.bars(hidden=hidden) as bars:
        task = bars.add_task("measuring", total=9)
        for _ in range(8):
            clock[0] += console.EVERY / 2
            bars.advance(task)
        bars.reset(task, description="again", total=None)
        clock[0] += 1
        bars.update(task, description="still again")
        clock[0] += console.EVERY
        bars.update(task, description="at last")
    found = capsys.readouterr()
    assert found.out == ""
    lines = [
        "0.5 min, measuring: 2 of 9",
        "1.0 min, measuring: 4 of 9",
        "1.5 min, measuring: 6 of 9",
        "2.0 min, measuring: 8 of 9",
        "2.5 min, at last: 0 of 9",
    ]
    assert found.err.splitlines() == ([] if hidden else lines)
