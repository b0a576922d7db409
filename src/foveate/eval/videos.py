"""Videos as processors of transformers take them: frames that are decoded and chosen already, and
what they have to know of them.

Given a path, a processor decodes with whichever package it finds; given frames without metadata, it
takes them for 24 a second, so that Qwen2.5-VL's positions and Qwen3-VL's written times are wrong, and
without ``do_sample_frames=False`` it chooses among them once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from foveate.data import Clip
from foveate.errors import InvalidInput


def read_videos(
    processor: Any,
    messages: Sequence[Mapping[str, Any]],
    images: Sequence[Image.Image],
    clips: Sequence[Clip],
) -> dict[str, Any]:
    """The inputs of messages with parts of type "video", which the chat template words.

    Raises:
        InvalidInput: the model has no chat template, which alone knows how its videos are worded.
    """
    if not getattr(processor, "chat_template", None):
        raise InvalidInput(
            "this model's processor has no chat template, and nothing else says how a video stands "
            "in its prompts. Give one (processor.chat_template), or the frames as images."
        )
    text = processor.apply_chat_template(
        [{**message, "content": _places(message["content"])} for message in messages],
        add_generation_prompt=True,
        tokenize=False,
    )
    begun = getattr(processor.tokenizer, "bos_token", None)
    made = processor(
        text=[text],
        images=list(images) or None,
        videos=[clip.frames for clip in clips],
        video_metadata=[clip.metadata for clip in clips],
        do_sample_frames=False,
        return_tensors="pt",
        # as transformers does it for templates that begin with the mark themselves
        **({"add_special_tokens": False} if begun and text.startswith(begun) else {}),
    )
    return {name: value for name, value in made.items() if name != "video_metadata"}


def _places(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The parts of a message, of which templates need the kinds, and texts."""
    return [
        dict(part) if part["type"] == "text" else {"type": part["type"]} for part in parts
    ]
