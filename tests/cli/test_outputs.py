"""What cannot be written is refused before any work is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Foveate, refused

LONG = "a" * 300


@pytest.fixture(autouse=True)
def nothing_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command may come as far as to load a model."""
    monkeypatch.delattr("foveate.loading.model._model")
    monkeypatch.delattr("foveate.loading.model._shipped")


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--prompt", "a", "--image", "IMAGE", "--picture", "OUT.png"),
        ("fit", "demo", "--memory", "1GB", "--picture", "OUT.png"),
        ("lens", "--out", "OUT.html"),
        ("calibrate", "mixkv", "--out", "OUT.json"),
        ("report", "FOLDER", "--out", "OUT.html"),
    ],
)
@pytest.mark.parametrize(
    ("place", "says"), [(f"{{}}/{LONG}", "cannot be created"), ("{}/no/x", "does not exist")]
)
def test_files(
    foveate: Foveate,
    tmp_path: Path,
    picture: Path,
    command: tuple[str, ...],
    place: str,
    says: str,
) -> None:
    out = place.format(tmp_path)
    known = {"IMAGE": str(picture), "FOLDER": str(tmp_path)}
    message = refused(foveate(*(known.get(word, word.replace("OUT", out)) for word in command)))
    assert says in message
    assert out in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "command",
    [("eval",), ("reproduce", "all"), ("bench", "--suite", "gpu", "--quick", "--device", "cpu")],
)
@pytest.mark.parametrize("below", ["", "/below"])
def test_folders(foveate: Foveate, tmp_path: Path, command: tuple[str, ...], below: str) -> None:
    (tmp_path / "file").touch()
    message = refused(foveate(*command, "--out", f"{tmp_path / 'file'}{below}"))
    assert f"--out '{tmp_path / 'file'}{below}'" in message
    assert f"'{tmp_path / 'file'}' is a file" in message


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder that takes no files")
@pytest.mark.parametrize(
    "command", [("lens", "--out", "/proc/x.html"), ("eval", "--out", "/proc/x")]
)
def test_places_in_a_folder_that_takes_no_files(foveate: Foveate, command: tuple[str, ...]) -> None:
    assert repr(command[-1]) in refused(foveate(*command))


def test_a_folder_of_a_report_that_is_missing_is_named(foveate: Foveate, tmp_path: Path) -> None:
    message = refused(foveate("report", tmp_path / "nowhere"))
    assert f"the directory {str(tmp_path / 'nowhere')!r} does not exist" in message
    assert "--out" not in message


def test_a_python_for_the_peer_that_is_missing_is_named(foveate: Foveate) -> None:
    message = refused(foveate("bench", "--against", "kvpress", "--peer-python", "/no/python"))
    assert "--peer-python '/no/python' is not a program" in message


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("chat", "--image", "nowhere.png"), "'nowhere.png' cannot be read"),
        (("fit", "", "--memory", "1GB"), "the model '' is empty"),
    ],
)
def test_inputs_that_are_none_are_refused_before_a_model_is_loaded(
    foveate: Foveate, command: tuple[str, ...], says: str
) -> None:
    assert says in refused(foveate(*command))


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_path_is_not_the_current_directory(foveate: Foveate, text: str) -> None:
    message = refused(foveate("eval", "--out", text))
    assert f"{text!r} is no path: write . for the current directory." in message
