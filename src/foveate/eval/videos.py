"""Messages with videos as inputs, and the pictures that their visual tokens see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from foveate.data import Clip
from foveate.errors import InvalidInput
from foveate.models.token_grids import frames_of_each
from foveate.prompts.special_tokens import lacks_first_token
from foveate.prompts.videos import films


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
    made = processor(
        text=[text],
        images=list(images) or None,
        **films(processor, [{"type": "video", "video": clip} for clip in clips]),
        return_tensors="pt",
        # as transformers does it for templates that begin with the mark themselves
        **({} if lacks_first_token(processor.tokenizer, text) else {"add_special_tokens": False}),
    )
    return {name: value for name, value in made.items() if name != "video_metadata"}


def pictures(
    clips: Sequence[Clip], images: Sequence[Image.Image], inputs: Mapping[str, Any]
) -> tuple[list[Image.Image], list[float]]:
    """What the visual tokens of a prompt see, in its order: frames, and the images behind them; and
    the frames' times. Where a grid of tokens is of several frames, it is the first of them.
    """
    counts = frames_of_each(inputs) or [len(clip) for clip in clips]
    shown: list[Image.Image] = []
    times: list[float] = []
    for clip, count in zip(clips, counts, strict=True):
        for number in (grid * len(clip) // count for grid in range(count)):
            shown.append(Image.fromarray(clip.frames[number]))
            times.append(float(clip.times[number]))
    return [*shown, *images], times


def _places(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The parts of a message, of which templates need the kinds, and texts."""
    return [dict(part) if part["type"] == "text" else {"type": part["type"]} for part in parts]
