"""Results on disk: whole after a kill, a full disk, a damaged line; one process at a time."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from foveate.data import files, lines
from foveate.errors import CannotWrite, InvalidInput
from foveate_lab.eval.keyed_rows import key_of
from foveate_lab.eval.results import Results, read

SETTINGS = {"model": "tiny", "versions": {"foveate": "1"}}


def row(sample: int, spec: str = "full", **more: Any) -> dict[str, Any]:
    return {"task": "t", "sample": str(sample), "spec": spec, "score": 1.0, **more}


def opened(folder: Path, *, resume: bool = True) -> Results:
    return Results(folder, SETTINGS, resume=resume)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three rows."""
    with opened(tmp_path, resume=False) as results:
        for sample in range(3):
            results.add(row(sample))
    return tmp_path


DAMAGED = [
    b'{"task": "t", "sample"',
    b"\x00\x00\x00\x00",
    b"\xff\xfe",
    b"[1, 2]",
    b"7",
    b"[" * 100_000,
    b'{"task": "t", "sample": "9"}',
    b'{"task": "t", "sample": 9, "spec": "full"}',
]


@pytest.mark.parametrize("line", DAMAGED, ids=lambda line: repr(line[:12]))
def test_a_damaged_line_is_set_aside_and_the_others_stay(folder: Path, line: bytes) -> None:
    rows = (folder / "rows.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rows.jsonl").write_bytes(rows[0] + line + b"\n" + rows[1] + rows[2])
    stored = read(folder)
    assert [stored.rows, len(stored.damaged)] == [[row(n) for n in range(3)], 1]
    with opened(folder) as results:
        assert results.rows == stored.rows
        assert len(results.damaged) == 1
        results.add(row(3))
    assert read(folder)[1:] == ([row(n) for n in range(4)], [])
    assert (folder / "rows.damaged.jsonl").read_bytes() == line + b"\n"
    (folder / "rows.jsonl").write_bytes(b"more\n" + rows[0])
    opened(folder).__exit__()
    assert (folder / "rows.damaged.jsonl").read_bytes() == line + b"\nmore\n"


def test_a_row_that_failed_is_tried_again_and_replaced(folder: Path) -> None:
    failed = {"task": "t", "sample": "9", "spec": "full", "error": {"type": "E", "message": "m"}}
    with opened(folder) as results:
        results.add(failed)
        results.add({**row(0), "error": failed["error"]})  # which is answered
        assert key_of(failed) not in results
    assert read(folder).rows == [*(row(n) for n in range(3)), failed]
    with opened(folder) as results:
        assert key_of(failed) not in results
        results.add(row(9))
        assert key_of(failed) in results
    assert read(folder).rows == [row(0), row(1), row(2), row(9)]


def test_rows_are_sorted_and_numbers_that_json_has_no_word_for_are_null(tmp_path: Path) -> None:
    order = [key_of(row(n, spec)) for n in range(2) for spec in ("full", "a")]
    with opened(tmp_path) as results:
        for key in (*order[::-1], ("t", "9", "old")):
            results.add({**row(int(key[1]), key[2]), "kl": math.inf, "feature_error": [math.nan]})
        results.sort(order)
    text = (tmp_path / "rows.jsonl").read_text()
    found = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert [key_of(one) for one in found] == [*order, ("t", "9", "old")]
    assert all(one["kl"] is None and one["feature_error"] == [None] for one in found)


def test_a_second_writer_is_refused_until_the_first_is_gone(folder: Path) -> None:
    holds = (
        "import sys, time; from pathlib import Path; from foveate_lab.eval.results import Results\n"
        f"r = Results(Path(sys.argv[1]), {SETTINGS!r}, resume=True); print('held', flush=True)\n"
        "time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", holds, str(folder)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        before = (folder / "rows.jsonl").read_bytes()
        with pytest.raises(InvalidInput, match="another process is writing"):
            opened(folder)
        assert (folder / "rows.jsonl").read_bytes() == before
        other.kill()
    with opened(folder), pytest.raises(InvalidInput, match="another process"):
        opened(folder)


@pytest.mark.parametrize("text", [None, "", "{", "[]"])
def test_rows_that_nothing_says_how_they_were_made_are_not_gone_on_with(
    folder: Path, text: str | None
) -> None:
    (folder / "run.json").unlink()
    if text is not None:
        (folder / "run.json").write_text(text)
    before = (folder / "rows.jsonl").read_bytes()
    with pytest.raises(InvalidInput, match=r"run\.json|holds no results"):
        opened(folder)
    with pytest.raises(InvalidInput, match="holds no results"):
        read(folder)
    assert (folder / "rows.jsonl").read_bytes() == before


@contextmanager
def full_disk(bytes_left: int, path: Path) -> Iterator[None]:
    """No file of this process grows beyond what the path's has, and so many bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + bytes_left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_full_disk_is_named_and_leaves_no_half_line(folder: Path, room: int) -> None:
    path = folder / "rows.jsonl"
    with opened(folder) as results:
        before = path.read_bytes()
        with full_disk(room, path):
            with pytest.raises(
                CannotWrite, match=r"rows\.jsonl.*cannot be written.*Free disk space"
            ):
                results.add(row(3))
            assert path.read_bytes() == before
            assert key_of(row(3)) not in results
        results.add(row(3))
        with full_disk(-1, path), pytest.raises(CannotWrite):
            results.sort([])
    assert read(folder).rows == [row(n) for n in range(4)]
    assert {one.name for one in folder.iterdir()} == {"run.json", "rows.jsonl", ".lock"}


def test_a_line_does_not_stand_on_one_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"a": 1}\n{"a"')
    lines.append(path, {"a": 2})
    assert path.read_bytes() == b'{"a": 1}\n{"a"\n{"a": 2}\n'
    assert lines.sorted_out(path) == ([{"a": 1}, {"a": 2}], [b'{"a"'], False)
    with pytest.raises(ValueError, match="is no JSON"):
        lines.read(path)


def test_a_file_is_replaced_whole_and_its_neighbours_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "page.html", tmp_path / "page.html.new"
    other.write_text("mine")
    path.write_text("old")
    path.chmod(0o640)
    files.write(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o640)

    def fails(*given: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        with pytest.raises(CannotWrite, match=r"page\.html.*No space left on device"):
            files.write(path, "newer")
    with pytest.raises(ZeroDivisionError), files.replacing(path) as part:
        part.write_text(f"half{1 / 0}")
    assert (path.read_text(), other.read_text()) == ("new", "mine")
    assert set(tmp_path.iterdir()) == {path, other}


def test_a_link_stays_a_link_and_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    link, target = tmp_path / "link.html", tmp_path / "there" / "page.html"
    target.parent.mkdir()
    link.symlink_to(target)
    files.write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    files.write(Path(os.devnull), "nothing")
    assert not Path(os.devnull).is_file()
    with pytest.raises(CannotWrite, match="No such file or directory"):
        files.write(tmp_path / "nowhere" / "page.html", "new")
