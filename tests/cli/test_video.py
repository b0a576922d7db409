"""``--video``: its frames are read, as images where a model takes no videos, and said."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest

from foveate.cli.prompt import DESCRIBE
from foveate.data import read_video
from tests.report.lens_data import Told
from tests.videos import film, spoiled

from .conftest import Foveate, refused

METHOD = ("--method", "knorm", "--budget", "50%")


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return film(tmp_path / "film.mp4")


def test_frames_are_images_where_no_videos_are_taken(
    foveate: Foveate, llava: Path, clip: Path
) -> None:
    asked = ("--model", llava, "--video", clip, "--prompt", "what is seen ?", "--rounds", "1")
    result = foveate("run", *asked, "--frames", "3", "--max-new-tokens", "2", *METHOD)
    assert result.exit_code == 0, result.stderr
    said = " ".join(result.stdout.split())
    assert "film.mp4: 3 frames, from 0.0 to 2.9 s, as images, since the processor of" in said
    result = foveate("run", *asked, "--fps", "2", "--max-new-tokens", "2", "--json", *METHOD)
    prompt = json.loads(result.stdout)["prompt"]
    assert (prompt["images"], prompt["videos"], prompt["visual_tokens"]) == (6, 0, 6 * 9)


def test_a_picture_names_frames_by_their_times(
    foveate: Foveate,
    llava: Path,
    clip: Path,
    picture: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []
    kept_picture = import_module("foveate.pictures.kept_picture")  # the package has its function
    monkeypatch.setattr(kept_picture, "_name", lambda view: names.append(view.name) or view.name)
    asked = ("--model", llava, "--video", clip, "--image", picture, "--prompt", "what is seen ?")
    more = ("--rounds", "1", "--frames", "2", "--max-new-tokens", "2", *METHOD)
    result = foveate("run", *asked, *more, "--picture", tmp_path / "kept.png")
    assert result.exit_code == 0, result.stderr
    assert names == ["frame at 0.0 s", "frame at 2.9 s", "image 1"]


def test_packets_that_are_lost_are_said(foveate: Foveate, llava: Path, tmp_path: Path) -> None:
    path = spoiled(film(tmp_path / "film.avi"), 3, 4)
    asked = ("--model", llava, "--video", path, "--prompt", "what is seen ?", "--rounds", "1")
    result = foveate("run", *asked, "--frames", "2", "--max-new-tokens", "2", *METHOD)
    assert "2 packets of the file could not be decoded" in " ".join(result.stdout.split())


def test_the_lens_has_a_time_line(
    foveate: Foveate, llava: Path, clip: Path, picture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "lens.html"
    asked = ("--model", llava, "--video", clip, "--image", picture, "--prompt", "what is seen ?")
    result = foveate("lens", *asked, "--frames", "3", "-o", out, *METHOD)
    assert result.exit_code == 0, result.stderr
    data = Told(out.read_text(encoding="utf-8")).data
    assert [frame["time"] for frame in data["frames"]] == [0, 1.4, 2.9]
    views = [part for part in data["parts"] if "image" in part]
    assert [one["name"] for one in views] == [
        "frame at 0.0 s",
        "frame at 1.4 s",
        "frame at 2.9 s",
        "image 1",
    ]
    assert [one["places"] for one in views[:3]] == [frame["places"] for frame in data["frames"]]


def test_a_rate_without_a_video_and_two_ways_to_choose_are_refused(
    foveate: Foveate, llava: Path, clip: Path
) -> None:
    said = refused(foveate("run", "--model", llava, "--fps", "2"))
    assert "--fps 2.0 needs a video" in said
    both = ("--video", clip, "--fps", "2", "--frames", "3")
    said = refused(foveate("lens", "--model", llava, *both))
    assert "fps=2.0 and frames=3 exclude each other" in said


def test_a_profile_is_measured_on_videos(
    foveate: Foveate, llava: Path, clip: Path, tmp_path: Path
) -> None:
    """The same of a prompt that names the video, of the video alone, and of its frames."""
    frames = [tmp_path / f"{number}.png" for number in range(3)]
    for image, path in zip(read_video(clip, frames=3).images, frames, strict=True):
        image.save(path)
    shown = {"videos": {"videos": [clip.name]}, "images": {"images": [one.name for one in frames]}}
    profiles = []
    for number, kind in enumerate(("videos", "images", "alone")):
        prompts, out = tmp_path / f"{kind}.jsonl", tmp_path / f"{number}.json"
        prompts.write_text(json.dumps({"prompt": DESCRIBE, **shown.get(kind, {})}) + "\n")
        how = ("--video", clip) if kind == "alone" else ("--prompts", prompts)
        taken = () if kind == "images" else ("--frames", "3")
        result = foveate("calibrate", "mixkv", "--model", llava, *how, *taken, "--out", out)
        assert result.exit_code == 0, result.stderr
        profiles.append(json.loads(out.read_text()))
    assert profiles[0] == profiles[1] == profiles[2]
    plain = tmp_path / "images.jsonl"
    none = foveate("calibrate", "mixkv", "--prompts", plain, "--fps", "2", "--out", out)
    assert "--fps 2.0 needs a video" in refused(none)
    both = foveate("calibrate", "mixkv", "--video", clip, "--prompts", tmp_path / "videos.jsonl")
    assert "--video cannot be combined" in refused(both)
