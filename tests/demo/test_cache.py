"""The user's cache: entries are whole or rebuilt, wherever they were cut."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from foveate_demo import cache

BIG = b"weights" * 1000


class Builder:
    """Writes two files, and counts how often."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, folder: Path) -> None:
        self.calls += 1
        (folder / "model.safetensors").write_bytes(BIG)
        (folder / "config.json").write_text("{}")


@pytest.fixture(autouse=True)
def _root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOVEATE_CACHE", str(tmp_path))


def test_an_entry_is_written_once(tmp_path: Path) -> None:
    build = Builder()
    assert cache.entry("model", build) == cache.entry("model", build) == tmp_path / "model"
    assert build.calls == 1
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def cut(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(BIG[:-1])


def flip(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"x" + BIG[1:])


def lose(folder: Path) -> None:
    (folder / "config.json").unlink()


def lose_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def cut_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text('{"config.json": "12')


def empty_manifest(folder: Path) -> None:
    (folder / "manifest.json").write_text("[]")


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    "damage", [cut, flip, lose, lose_manifest, cut_manifest, empty_manifest, empty]
)
def test_what_is_damaged_is_written_anew_and_said_so(
    damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build = Builder()
    damage(cache.entry("model", build))
    with caplog.at_level(logging.WARNING):
        folder = cache.entry("model", build)
    assert build.calls == 2
    assert (folder / "model.safetensors").read_bytes() == BIG
    assert "is damaged" in caplog.text
    assert {path.name for path in tmp_path.iterdir()} == {"model"}
    cache.entry("model", build)
    assert build.calls == 2


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def build(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.entry("model", build)
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_faster_wins(tmp_path: Path) -> None:
    slow, fast = Builder(), Builder()

    def build(folder: Path) -> None:
        slow(folder)
        cache.entry("model", fast)  # meanwhile, in another process

    assert cache.entry("model", build) == tmp_path / "model"
    assert cache.entry("model", slow) == tmp_path / "model"
    assert (slow.calls, fast.calls) == (1, 1)
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_the_manifest_lists_every_file(tmp_path: Path) -> None:
    folder = cache.entry("model", Builder())
    listed = json.loads((folder / "manifest.json").read_text())
    assert set(listed) == {"model.safetensors", "config.json"}
    assert all(len(digest) == 64 for digest in listed.values())


def test_the_place_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOVEATE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache.root() == Path("/somewhere/foveate")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.root() == Path.home() / ".cache" / "foveate"
