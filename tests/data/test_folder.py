"""Data names files of its own folder, and no others unless that is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from foveate.data import Folder, Record
from foveate.errors import InvalidInput


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with an image, beside a secret one; and links from one to the other."""
    folder = tmp_path / "data"
    (folder / "inner").mkdir(parents=True)
    Image.new("RGB", (3, 3), "red").save(folder / "own.png")
    Image.new("RGB", (3, 3), "blue").save(tmp_path / "secret.png")
    (folder / "inner" / "link.png").symlink_to(folder / "own.png")
    (folder / "leak.png").symlink_to(tmp_path / "secret.png")
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    (folder / "ring.png").symlink_to(folder / "ring.png")
    return folder


def asked(folder: Folder, name: str) -> tuple[int, ...]:
    image = folder.image(Record({"file": name}, "table.json, record 4"), "file", "{}")
    pixel = image.getpixel((0, 0))
    assert isinstance(pixel, tuple)
    return pixel


@pytest.mark.parametrize("name", ["own.png", "inner/../own.png", "./inner/link.png"])
def test_what_lies_in_the_folder_is_read(data: Path, name: str) -> None:
    assert asked(Folder(data), name) == (255, 0, 0)


@pytest.mark.parametrize("name", ["../secret.png", "{}/secret.png", "leak.png", "up/secret.png"])
def test_what_leads_out_is_read_only_where_that_is_allowed(data: Path, name: str) -> None:
    name = name.replace("{}", str(data.parent))
    with pytest.raises(InvalidInput, match=r"record 4, field 'file'.*leads out.*--allow-outside"):
        asked(Folder(data), name)
    assert asked(Folder(data, outside=True), name) == (0, 0, 255)


def test_a_part_of_a_folder_may_name_what_lies_in_the_whole(data: Path) -> None:
    assert asked(Folder(data).within("inner"), "../own.png") == (255, 0, 0)
    with pytest.raises(InvalidInput, match="leads out"):
        Folder(data).within("up").find("*.png")
    with pytest.raises(InvalidInput, match="leads out"):
        Folder(data).find("*.png")


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize(
    "name", ["", "inner", "no.png", "ring.png", "a\0b", "x" * 5000, "a/" * 3000]
)
def test_a_name_of_no_file_is_refused(data: Path, name: str, outside: bool) -> None:
    with pytest.raises(InvalidInput, match=r"table\.json, record 4, field 'file'"):
        asked(Folder(data, outside), name)


def test_a_snapshot_in_the_hubs_cache_is_whole(tmp_path: Path) -> None:
    snapshot = tmp_path / "datasets--a--b" / "snapshots" / "f00"
    snapshot.mkdir(parents=True)
    blobs = tmp_path / "datasets--a--b" / "blobs"
    blobs.mkdir()
    Image.new("RGB", (3, 3), "red").save(blobs / "c0ffee", "PNG")
    (snapshot / "a.png").symlink_to(blobs / "c0ffee")
    assert asked(Folder(snapshot), "a.png") == (255, 0, 0)
