"""Frames of video files: the right ones, at their true times, and what is wrong with a file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from foveate.data import VideoParts, read_video, videos
from foveate.errors import InvalidInput, InvalidParameter, MissingPackage
from tests.videos import HIGH, KINDS, WIDE, film, numbers, sound, spoiled, turned


@pytest.mark.parametrize("name", KINDS)
def test_frames_are_those_at_the_times_asked_for(name: str, tmp_path: Path) -> None:
    path = film(tmp_path / name)
    clip = read_video(path, frames=4)
    assert clip.frames.shape == (4, HIGH, WIDE, 3)
    assert numbers(clip.frames) == [0, 10, 19, 29]
    assert clip.times == pytest.approx([0, 1.0, 1.9, 2.9])
    assert (clip.fps, clip.duration) == pytest.approx((10, 3.0))
    assert clip.metadata["frames_indices"] == [0, 10, 19, 29]
    assert clip.metadata["total_num_frames"] == 30
    assert numbers(read_video(path, fps=2).frames) == [0, 5, 10, 15, 20, 25]
    assert numbers(read_video(path, fps=2, start=0.5, end=1.5).frames) == [5, 10, 15]
    assert numbers(read_video(path, frames=3, start=1.04, end=1.25).frames) == [10, 11, 12]
    assert numbers(read_video(path).frames) == list(range(30))
    assert numbers(read_video(path, fps=100).frames) == list(range(30))
    assert len(read_video(path, frames=500)) == 30
    assert clip.images[1].size == (WIDE, HIGH)


@pytest.mark.parametrize("name", ["film.mp4", "film.mkv", "film.gif"])
def test_of_a_rate_that_varies_the_times_are_the_files(name: str, tmp_path: Path) -> None:
    times = [0, 0.1, 0.2, 1.2, 2.2, 2.3, 4.0]
    clip = read_video(film(tmp_path / name, times))
    assert clip.times == pytest.approx(times)
    by_rate = read_video(tmp_path / name, fps=1)
    assert numbers(by_rate.frames) == [0, 2, 3, 5, 6]  # what is shown at 0, 1, 2, 3 and 4 s
    shown = np.array(by_rate.metadata["frames_indices"]) / by_rate.fps
    assert shown == pytest.approx(by_rate.times, abs=0.5 / by_rate.fps)


def test_a_turned_video_is_upright(tmp_path: Path) -> None:
    path = film(tmp_path / "film.mp4")
    stored = read_video(path, frames=1).frames[0]
    upright = read_video(turned(path), frames=1).frames[0]
    assert upright.shape == (WIDE, HIGH, 3)
    assert (upright == np.rot90(stored, -1)).all()  # a quarter to the right
    assert upright[: WIDE // 4, -HIGH // 4 :].max() < 4  # where the black quarter went


def test_what_is_turned_by_half_a_quarter_is_refused(tmp_path: Path) -> None:
    path = turned(film(tmp_path / "film.mp4"), (0.7071, 0.7071, -0.7071, 0.7071))
    with pytest.raises(InvalidInput, match="rotated by -45 degrees"):
        read_video(path, frames=1)


def test_packets_that_do_not_decode_are_counted_and_what_was_shown_stays(tmp_path: Path) -> None:
    path = film(tmp_path / "film.avi")  # each of whose frames stands alone
    whole = read_video(path)
    clip = read_video(spoiled(path, 5, 12, 13))
    assert clip.corrupt == 3
    lost = [number for number in range(30) if number not in (5, 12, 13)]
    assert numbers(clip.frames) == lost
    assert (clip.times == whole.times[lost]).all()
    few = read_video(path, fps=2, end=1.3)  # frames 0, 5, 10
    assert (numbers(few.frames), few.times.tolist()) == ([0, 4, 10], [0, 0.4, 1.0])
    with pytest.raises(InvalidInput, match=r"no frame can be decoded \(30 broken packets"):
        read_video(spoiled(path, *range(30)))


def test_what_is_written_beside_the_frames_may_be_in_any_encoding(tmp_path: Path) -> None:
    path = film(tmp_path / "film.mp4")
    held = path.read_bytes()
    assert b"VideoHandler" in held
    path.write_bytes(held.replace(b"VideoHandler", b"Vid\xe9oHandler"))
    assert len(read_video(path)) == 30


@pytest.mark.parametrize("name", ["film.mkv", "film.webm"])
def test_a_file_that_ends_early_is_refused(name: str, tmp_path: Path) -> None:
    path = film(tmp_path / name)
    held = path.read_bytes()
    path.write_bytes(held[: 3 * len(held) // 4])
    with pytest.raises(InvalidInput, match=r"is cut short: it declares 3\.00 s, and ends after"):
        read_video(path, frames=2)


@pytest.mark.parametrize("name", ["film.mkv", "film.webm", "film.mp4"])
def test_a_file_whose_times_begin_late_is_read_if_it_is_whole(name: str, tmp_path: Path) -> None:
    """As parts of recordings do. Matroska counts its duration from time zero."""
    path = film(tmp_path / name, [10 + number / 10 for number in range(30)])
    clip = read_video(path)
    assert numbers(clip.frames) == list(range(30))
    np.testing.assert_allclose(clip.times, np.arange(30) / 10, atol=1e-3)
    if name != "film.mp4":  # whose index is at the end
        held = path.read_bytes()
        path.write_bytes(held[: 3 * len(held) // 4])
        with pytest.raises(InvalidInput, match=r"is cut short: it declares 13\.00 s"):
            read_video(path)


def _cut(path: Path, within: int) -> None:
    """An MP4 as a recorder leaves it that was switched off, without its index, which stands at the
    end; or with so many bytes of it.
    """
    held = path.read_bytes()
    path.write_bytes(held[: held.index(b"moov") - 4 + within])


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: _cut(path, 0), "it is broken or cut short"),
        (lambda path: _cut(path, 116), "has no streams: it is cut short"),
        (lambda path: path.write_bytes(b""), "cannot be read as a video"),
        (lambda path: path.write_text("#EXTM3U\n#EXTINF:1,\n/etc/hostname\n"), "format is none of"),
        (lambda path: path.unlink(), "does not exist"),
        (lambda path: sound(path), "has only audio, and no video"),
    ],
    ids=["no index", "index without streams", "empty", "playlist", "missing", "sound"],
)
def test_what_is_no_video_is_named(spoil: object, said: str, tmp_path: Path) -> None:
    path = film(tmp_path / "film.mp4")
    spoil(path)  # type: ignore[operator]
    with pytest.raises(InvalidInput, match=said) as caught:
        read_video(path, frames=2)
    assert "film.mp4" in str(caught.value)


@pytest.mark.parametrize(
    "asked",
    [
        {"frames": 0},
        {"fps": 0.0},
        {"fps": float("nan")},
        {"fps": 1.0, "frames": 2},
        {"start": -1.0},
        {"start": 2.0, "end": 1.0},
    ],
)
def test_what_no_frames_can_be_taken_by_is_refused(asked: dict[str, float]) -> None:
    with pytest.raises(InvalidParameter):
        read_video(Path("any.mp4"), **asked)  # type: ignore[arg-type]


def test_a_time_after_the_end_and_a_missing_package_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = film(tmp_path / "film.mp4")
    with pytest.raises(InvalidInput, match=r"no frame after 9 s: it lasts 3\.00 s"):
        read_video(path, start=9.0)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingPackage, match=r"foveate\[video\]"):
        read_video(path)


def test_parts_of_a_file_are_its_frames(tmp_path: Path) -> None:
    file = film(tmp_path / "film.mp4")
    expected, parts = read_video(file, fps=5), VideoParts(file, 4, fps=5)
    assert (parts.name, parts.count) == ("film.mp4", len(expected))
    clips = list(parts)
    assert [len(clip) for clip in clips] == [4, 4, 4, 3]
    assert np.array_equal(np.concatenate([clip.frames for clip in clips]), expected.frames)
    assert np.array_equal(np.concatenate([clip.times for clip in clips]), expected.times)
    assert {(clip.fps, clip.duration) for clip in clips} == {(expected.fps, expected.duration)}
    with pytest.raises(InvalidInput, match="does not exist"):
        VideoParts(tmp_path / "none.mp4", 4)


def test_a_part_is_decoded_when_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded, upright = [], videos._upright

    def noted(frame: object) -> object:
        decoded.append(frame)
        return upright(frame)

    monkeypatch.setattr(videos, "_upright", noted)
    parts = iter(VideoParts(film(tmp_path / "film.mp4"), 4))
    for ready in (5, 9, 13):  # one frame more, to see that the part is full
        next(parts)
        assert len(decoded) == ready
