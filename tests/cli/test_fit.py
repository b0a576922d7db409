"""``foveate fit``: what fills the memory, as a table, as JSON and as bars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from foveate.pictures.memory_bars import memory_picture
from tests import zoo

from .conftest import Foveate

ASKED = ("--images", 2, "--size", "40x30", "--text", 60, "--answer", 2, "--dtype", "float32")


def test_a_table_in_80_columns_says_what_fits(
    foveate: Foveate, llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    fits = foveate("fit", llava, *ASKED, "--memory", "1GB", "--policy", "snapkv")
    assert fits.exit_code == 0, fits.output
    assert max(map(len, fits.stdout.splitlines())) <= 80
    for said in ("vision tower", "18 of them visual", "It fits", "snapkv", "vLLM"):
        assert said in fits.stdout
    tight = foveate("fit", llava, *ASKED, "--memory", "100KB")
    assert tight.exit_code == 1
    assert "It does not fit" in tight.stdout


def test_json_has_what_the_table_rounds(as_json: Callable[..., Any], llava: Path) -> None:
    found = as_json(
        "fit", llava, *ASKED, "--memory", "1GB", "--policy", "snapkv", "--policy", "kivi"
    )
    full, *under = found["caches"]
    assert found["peak"] == found["weights"]["bytes"] + max(found["peaks"].values())
    assert found["prompt"] == {"tokens": 78, "visual": 18}
    assert full["cache"]["kept"] == 78
    assert [one["cache"]["kept"] for one in under] == [32, 78]
    assert [one["refused"] != "" for one in found["vllm"]["served"]] == [False, False, True]


def test_a_video_is_read_as_frames_where_the_model_takes_none(
    as_json: Callable[..., Any], llava: Path
) -> None:
    asked = ("--video", "4s", "--fps", 1, "--size", "40x30", "--dtype", "float32")
    found = as_json("fit", llava, *asked, "--memory", "1GB")
    assert found["prompt"]["visual"] == 5 * 9


def test_a_video_is_read_as_the_models_own_and_what_no_file_says_is_told(
    foveate: Foveate, tmp_path: Path
) -> None:
    zoo.build("internvl").config.save_pretrained(tmp_path)
    wanted = ("--video", "3s", "--frames", 8, "--size", "40x30", "--dtype", "float32")
    done = foveate("fit", tmp_path, *wanted, "--memory", "1GB")
    assert done.exit_code == 0, done.output
    assert "72 of them visual" in done.stdout
    assert "frames of 24x24, as by default" in " ".join(done.stdout.split())


def test_what_a_prune_stage_leaves_of_the_prefill_is_said(
    foveate: Foveate, as_json: Callable[..., Any], llava: Path
) -> None:
    wanted = ("fit", llava, *ASKED, "--memory", "1GB", "--policy", "spatial.prune(keep=50%)+full")
    whole, pruned = as_json(*wanted)["caches"]
    assert whole["prefill"] is None
    assert pruned["cache"]["kept"] == 78 - 9
    said = f"{pruned['prefill']['flops']:.0%} of the decoder's FLOPs"
    assert said in " ".join(foveate(*wanted).stdout.split())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--memory", "20%"), "--memory '20%' is no number of bytes"),
        (("--memory", "0"), "--memory '0' is no number of bytes"),
        (("--memory", "-3GB"), "--memory '-3GB' is no number of bytes"),
        (("--memory", "nan"), "write 24GB or 512MiB"),
        (("--memory", "1GB", "--size", "40x30"), "--size 40x30 needs images or a video"),
        (("--memory", "1GB", "--block-size", 0), "(--block-size)"),
        (("--memory", "1GB", "--gpu-memory-utilization", "nan"), "(--gpu-memory-utilization)"),
        (("--memory", "1GB", "--images", 1), "give their width and height"),
        (("--memory", "1GB", "--fps", 1), "--video 1h"),
        (("--memory", "1GB", "--picture", "a.txt"), "has no image format"),
    ],
)
def test_what_cannot_be_meant_is_said(
    foveate: Foveate, llava: Path, wrong: tuple[object, ...], said: str
) -> None:
    done = foveate("fit", llava, "--dtype", "float32", *wrong)
    assert done.exit_code == 2
    assert said in done.stderr


def test_bars_are_as_long_as_their_bytes(foveate: Foveate, llava: Path, tmp_path: Path) -> None:
    page = memory_picture("m", [("reading", [("weights", 300), ("KV cache", 100)])], memory=800)
    blue, orange = (47, 126, 216), (217, 101, 11)
    lines = [[page.getpixel((x, y)) for x in range(page.width)] for y in range(page.height)]
    bar = max(lines, key=lambda line: line.count(blue))
    assert bar.count(blue) == pytest.approx(3 * bar.count(orange), abs=3)
    assert bar.count(blue) == pytest.approx(300 / 800 * 873, abs=3)
    picture = tmp_path / "bars.png"
    done = foveate("fit", llava, *ASKED, "--memory", "1MB", "--picture", picture)
    assert done.exit_code == 0, done.output
    with Image.open(picture) as drawn:
        assert drawn.width == page.width
