"""Pictures of streams: what is left of each frame, under its time."""

from __future__ import annotations

import numpy as np
import pytest

import foveate
from foveate.errors import InvalidInput, NothingCompressed
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.stream import Stream
from foveate.stream import picture as module
from tests.stream import tiny

TIGHT, ROOMY = "adakv:budget=24,window=4", "infinipotv:budget=5000"
FILM = [tiny.frame(number, width=4 * tiny.SIDE) for number in range(10)]


@pytest.fixture
def drawn(monkeypatch):
    """Frames of the latest picture, as they are drawn."""
    frames, draw = [], module.frames_picture

    def noted(title, subtitle, shown):
        frames[:] = shown
        return draw(title, subtitle, shown)

    monkeypatch.setattr(module, "frames_picture", noted)
    monkeypatch.setattr(tiny.Processor, "image_processor", property(lambda p: p.images), False)
    return frames


def visual_pairs(stream, number):
    """Pairs that are stored of a frame's visual tokens, for a head of a layer on average."""
    state, heads = known_state(stream._cache), 0
    image, found = state.images()[0][0], 0
    for layer in foveate_layers(stream._cache):
        for columns in layer.pairs.columns[0].tolist():
            heads += 1
            stored = [column for column in columns if column >= 0 and image[column] == number]
            found += sum(bool(state.tokens.vision[0, column]) for column in stored)
    return found / heads


def seen(policy):
    stream = Stream(tiny.model(), tiny.processor(), policy, every=4)
    for number, frame in enumerate(FILM):
        stream.see(frame, time=number / 2)
    return stream


def test_a_picture_shows_what_is_left_of_each_frame(drawn):
    stream = seen(TIGHT)
    page = stream.picture(FILM)
    left = stream.frames
    assert 1 < len(left) < len(FILM)
    for frame, shown in zip(left, drawn, strict=True):
        assert shown.caption == f"{frame.number / 2:.1f} s, {frame.kept:.0%} kept"
        assert float(shown.share.sum()) == pytest.approx(visual_pairs(stream, frame.number))
        assert shown.image.tobytes() == FILM[frame.number].tobytes()
        assert len(shown.tokens.grids[0].indices) == 8  # cells of the frame
    late = left[-1].number
    assert np.array_equal(page.crop((0, 0, 960, 40)), stream.picture(FILM).crop((0, 0, 960, 40)))
    stream.picture(FILM[late:], first=late)
    assert [shown.caption for shown in drawn] == [f"{late / 2:.1f} s, {left[-1].kept:.0%} kept"]


def test_a_frame_of_which_all_is_left_has_no_fog(drawn):
    stream = seen(ROOMY)
    stream.picture(iter(FILM))
    assert len(drawn) == len(FILM)
    assert all(shown.share.sum() == 8 for shown in drawn)


def test_a_picture_of_a_file_is_that_of_its_frames(drawn, tmp_path):
    videos = pytest.importorskip("tests.videos")
    file = videos.film(tmp_path / "film.mp4", [number / 10 for number in range(20)])
    stream = Stream(tiny.model(), tiny.processor(), ROOMY)
    stream.see(file, fps=10)
    page = stream.picture(file, fps=10)
    times = [f"{number / 10:.1f} s, 100% kept" for number in range(20)]
    assert [shown.caption for shown in drawn] == times
    assert page.tobytes() == stream.picture(foveate.read_video(file)).tobytes()


def test_what_cannot_be_drawn_is_named(drawn):
    empty = Stream(tiny.model(), tiny.processor(), TIGHT)
    with pytest.raises(NothingCompressed, match="seen no frame"):
        empty.picture(FILM)
    stream = seen(TIGHT)
    with pytest.raises(InvalidInput, match=r"none of these frames is left.*first="):
        stream.picture(FILM[:1], first=100)
    with pytest.raises(InvalidInput, match=r"tokens when it was read.*same fps"):
        stream.picture([tiny.frame(0)] * 10)
