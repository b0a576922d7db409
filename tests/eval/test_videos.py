"""What a processor that takes videos is given: frames that are chosen, and what they are of. The
processors of transformers need torchvision: tests/serving/test_videos.py has them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from foveate.data import Clip
from foveate.errors import InvalidInput
from foveate.loading.model import Loaded
from foveate.prompts.prompt import read
from foveate.prompts.videos import pictures


class Recorder:
    """Takes videos, and notes what it is given."""

    video_processor = object()
    image_token = "<image>"
    chat_template = "is there"

    def __init__(self, tokenizer: Any):
        self.tokenizer, self.image_processor = tokenizer, None

    def apply_chat_template(self, messages: Any, **how: Any) -> str:
        self.messages, self.how = messages, how
        return f"<s>{''.join(p.get('text', '<image>') for p in messages[0]['content'])}"

    def __call__(self, **given: Any) -> dict[str, Any]:
        self.given = given
        how = {"add_special_tokens": given.get("add_special_tokens", True)}
        return dict(self.tokenizer(given["text"], return_tensors="pt", **how)) | {
            "video_metadata": given["video_metadata"],
            "pixel_values": torch.zeros(1),
        }


@pytest.fixture
def clip() -> Clip:
    """Three frames of a film of 4 s, 5 a second."""
    times = np.array([0.0, 1.8, 3.8])
    return Clip(np.zeros((3, 8, 12, 3), np.uint8), times, 5.0, 4.0, name="film.mp4")


def test_frames_come_with_their_metadata_and_are_chosen_no_more(loaded: Loaded, clip: Clip) -> None:
    reader = Recorder(loaded.tokenizer)
    image = Image.new("RGB", (5, 4), "red")
    prompt = read(replace(loaded, reader=reader), "what ?", [image], clips=[clip])
    kinds = [part["type"] for part in reader.messages[0]["content"]]
    assert kinds == ["video", "image", "text"]
    assert reader.how == {"add_generation_prompt": True, "tokenize": False}
    given = reader.given
    assert given["videos"][0] is clip.frames
    assert given["do_sample_frames"] is False
    assert given["add_special_tokens"] is False  # as the template begins with it
    assert [one.size for one in given["images"][0]] == [(5, 4)]
    (metadata,) = given["video_metadata"]
    assert metadata == {
        "total_num_frames": 20,
        "fps": 5.0,
        "duration": 4.0,
        "frames_indices": [0, 9, 19],
        "width": 12,
        "height": 8,
        "video_backend": "pyav",
    }
    assert (prompt.images, prompt.clips) == (1, 1)
    assert "video_metadata" not in prompt.inputs
    shown, times = pictures([clip], [image], prompt.inputs)
    assert ([one.size for one in shown], times) == ([(12, 8)] * 3 + [(5, 4)], [0.0, 1.8, 3.8])


def test_a_processor_without_a_template_says_how_no_video_stands(
    loaded: Loaded, clip: Clip
) -> None:
    reader = Recorder(loaded.tokenizer)
    reader.chat_template = ""
    with pytest.raises(InvalidInput, match="has no chat template"):
        read(replace(loaded, reader=reader), "what ?", [], clips=[clip])
    text_only = replace(loaded, reader=loaded.tokenizer, sees=False)
    with pytest.raises(InvalidInput, match=r"1 image\(s\) or video\(s\) were given"):
        read(text_only, "what ?", [], clips=[clip])
