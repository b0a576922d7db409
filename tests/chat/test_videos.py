"""Videos in a conversation: as exact as images, at the times at which their frames are shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foveate
from foveate.errors import InvalidInput
from tests.core.users import unchecked

from .conversations import Record, image
from .families import talker
from .test_turns import EXACT


def clip(number: int, times: tuple[float, ...]) -> foveate.Clip:
    """Frames of a drawn film, ten a second."""
    shown = [np.asarray(image(number).rotate(20 * i)) for i in range(len(times))]
    return foveate.Clip(np.stack(shown), np.array(times), 10.0, times[-1] + 0.5, name="film.mp4")


TURNS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("What happens?", {"videos": [clip(0, (0.0, 0.5, 1.0, 1.5))]}),
    ("When?", {}),
    ("Is this in it?", {"images": [image(1)], "videos": [clip(2, (0.0, 2.0, 4.0))]}),
    ("And in the first?", {}),
)


@pytest.mark.parametrize("spec", ["snapkv:budget=100%,window=4", "snapkv:budget=30%,window=4"])
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_a_chat_about_videos_is_the_stock_models_reading_of_all_of_it(name: str, spec: str) -> None:
    who, record = talker(name), Record()
    chat = foveate.Chat(who.model, who.processor, spec)
    with record.listening():
        for number, (text, shown) in enumerate(TURNS):
            record.of(chat, number, who.eos, text, **shown)
    assert record.differs(who, chat, masked=True) <= EXACT
    assert (record.differs(who, chat) > 100 * EXACT) == ("30%" in spec)


def told(name: str, video: Any) -> tuple[dict[str, Any], str]:
    """What a model is given of a video, and the words around it."""
    who, record = talker(name), Record()
    chat = foveate.Chat(who.model, who.processor, "full")
    with record.listening():
        record.of(chat, 0, who.eos, "What?", videos=[video])
    return record.given[0], who.processor.tokenizer.decode(chat._now.ids[0])


def test_the_processor_is_told_when_frames_are_shown() -> None:
    film = clip(0, (0.0, 1.0, 2.0, 3.0))
    given, _ = told("qwen2_5_vl", film)
    assert float(given["second_per_grid_ts"][0]) == pytest.approx(2 * film.duration / 4)
    assert "video_metadata" not in given
    _, words = told("qwen3_vl", film)
    assert words.count("<0.5 seconds>") == words.count("<2.5 seconds>") == 1
    given, _ = told("qwen2_5_vl", film.frames)  # which says nothing of times
    assert float(given["second_per_grid_ts"][0]) == pytest.approx(2 / 24)


NOT_WATCHED = {
    "a path": (
        "qwen2_vl",
        {"videos": ["a.mp4"]},
        r"'a.mp4' is a path instead of frames: give videos=\[fov",
    ),
    "a number": ("qwen2_vl", {"videos": [7]}, "this int is no video: give a foveate.Clip"),
    "none": (
        "qwen2_vl",
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
        r"videos\[0\] has no frames",
    ),
    "where images are": (
        "internvl",
        {"videos": [clip(0, (0.0,))]},
        "this InternVLProcessor takes no videos: pass their frames as images",
    ),
}


@pytest.mark.parametrize("case", NOT_WATCHED)
def test_what_is_no_video_is_refused(case: str) -> None:
    name, how, said = NOT_WATCHED[case]
    chat = foveate.Chat(talker(name).model, talker(name).processor)
    with pytest.raises(InvalidInput, match=said), unchecked():
        chat.say("What happens?", **how)
    assert chat.messages == []


def test_a_loaded_chat_goes_on_about_its_video(tmp_path: Path) -> None:
    who, record = talker("qwen2_5_vl"), Record()
    chat = foveate.Chat(who.model, who.processor, "snapkv:budget=30%,window=4")
    with record.listening():
        record.of(chat, 0, who.eos, TURNS[0][0], **TURNS[0][1])
        chat = foveate.Chat.load(chat.save(tmp_path / "chat.safetensors"), *who[:2])
        record.of(chat, 1, who.eos, "When?")
    assert record.differs(who, chat, masked=True) <= EXACT
