"""From a text, images and videos to the tensors that a model takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from foveate.backends.hf.devices import input_device
from foveate.backends.hf.modality import visual_token_ids
from foveate.data import Clip, rgb
from foveate.errors import InvalidInput
from foveate.eval.model import Loaded
from foveate.eval.pixels import bounded
from foveate.eval.sample import AS_THEY_ARE, PLACE, Pixels
from foveate.eval.videos import read_videos

Part = dict[str, Any]
"""A text, an image or a video, as chat templates take them: :func:`text_part`, :func:`image_part`,
:func:`video_part`.
"""
Message = Mapping[str, Any]
"""``{"role": "user", "content": [parts]}``."""


@dataclass(frozen=True)
class Prompt:
    """What the model is asked: ``inputs`` go to ``generate``."""

    inputs: dict[str, Any]
    vision: Tensor  # True at visual tokens, [tokens]
    images: int
    clips: int = 0

    @property
    def visual_tokens(self) -> int:
        """How many tokens stand for images."""
        return int(self.vision.sum())

    @property
    def tokens(self) -> int:
        """Length of the prompt, image tokens included."""
        return int(self.inputs["input_ids"].shape[1])


def read(
    loaded: Loaded,
    text: str,
    images: Sequence[Image.Image],
    *,
    clips: Sequence[Clip] = (),
    plain: bool = False,
    pixels: Pixels = AS_THEY_ARE,
) -> Prompt:
    """The prompt as the model's chat template words it, or the plain text if it has none or is not
    to be asked; images within bounds, if there are any. Clips stand before everything else: as
    videos, or as images where the processor takes none (:func:`takes_videos`).

    Raises:
        InvalidInput: images for a model that reads text only, or another number of images than
            the text has places for; bounds for a processor that has none.
    """
    _check_sees(loaded, len(images) + len(clips))
    parts = [text_part(text)]
    if loaded.sees:
        parts = _parts(text, images, _placeholder(loaded.reader))
        parts = [*map(video_part, clips), *parts]
    if images or clips:
        loaded = replace(loaded, reader=bounded(loaded, pixels))
    return read_chat(loaded, [{"role": "user", "content": parts}], plain=plain)


def read_chat(loaded: Loaded, messages: Sequence[Message], *, plain: bool = False) -> Prompt:
    """The prompt of a conversation. A model without a chat template, or whose template is not to be
    asked (``plain``), reads its parts in order; one whose processor takes no videos reads their
    frames as images.

    Raises:
        InvalidInput: images for a model that reads text only, or a text with the placeholder that
            stands for an image.
    """
    if loaded.sees and not takes_videos(loaded):
        messages = [{**one, "content": _with_frames(one["content"])} for one in messages]
    parts = [part for message in messages for part in message["content"]]
    images, clips = (sum(part["type"] == kind for part in parts) for kind in ("image", "video"))
    _check_sees(loaded, images + clips)
    try:
        worded = _see if loaded.sees else _words
        encoded = worded(loaded.reader, messages, plain)
    except ValueError as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{loaded.name} cannot read this prompt: {error}") from error
    ids = encoded["input_ids"]
    visual = torch.isin(ids, ids.new_tensor(visual_token_ids(loaded.model.config)))
    inputs = {name: _moved(value, loaded) for name, value in encoded.items()}
    return Prompt(inputs, visual[0], images, clips)


def text_part(text: str) -> Part:
    """A text in a message."""
    return {"type": "text", "text": text}


def image_part(image: Image.Image) -> Part:
    """An image in a message, in RGB whatever its mode: see :mod:`foveate.data.images`."""
    return {"type": "image", "image": rgb(image)}


def video_part(clip: Clip) -> Part:
    """A video in a message."""
    return {"type": "video", "video": clip}


def takes_videos(loaded: Loaded) -> bool:
    """Whether the processor makes tokens of videos; for others their frames are images."""
    return getattr(loaded.reader, "video_processor", None) is not None


def _with_frames(parts: Sequence[Part]) -> list[Part]:
    """The parts with each video as its frames, one image after the other."""
    return [
        one
        for part in parts
        for one in (map(image_part, part["video"].images) if part["type"] == "video" else [part])
    ]


def _check_sees(loaded: Loaded, shown: int) -> None:
    if shown and not loaded.sees:
        raise InvalidInput(
            f"{loaded.name} reads text only, and {shown} image(s) or video(s) were given. Choose a "
            "vision-language model with --model, or leave out --image and --video."
        )


def _placeholder(processor: Any) -> str:
    return str(getattr(processor, "image_token", None) or "<image>")


def _words(tokenizer: Any, messages: Sequence[Message], plain: bool) -> dict[str, Any]:
    said = [
        {**message, "content": "".join(part["text"] for part in message["content"])}
        for message in messages
    ]
    if tokenizer.chat_template and not plain:
        encoded = _chat(tokenizer, said)
    else:
        encoded = tokenizer("".join(message["content"] for message in said), return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def _see(processor: Any, messages: Sequence[Message], plain: bool) -> dict[str, Any]:
    token = _placeholder(processor)
    parts = [part for message in messages for part in message["content"]]
    for part in parts:
        if token in part.get("text", ""):
            raise InvalidInput(
                f"the text {part['text']!r} has the placeholder {token!r}, which stands for an "
                "image. Take it out: images have parts of their own."
            )
    images = [part["image"] for part in parts if part["type"] == "image"]
    clips = [part["video"] for part in parts if part["type"] == "video"]
    if clips:
        return read_videos(processor, messages, images, clips)
    if getattr(processor, "chat_template", None) and not plain:
        return dict(_chat(processor, messages))
    text = "".join(token if part["type"] == "image" else part["text"] for part in parts)
    return dict(processor(text=text, images=images or None, return_tensors="pt"))


def _chat(reader: Any, messages: Sequence[Mapping[str, Any]]) -> Any:
    """The messages as the model's template words them, with the answer about to begin."""
    return reader.apply_chat_template(
        list(messages),
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )


def _parts(text: str, images: Sequence[Image.Image], token: str) -> list[Part]:
    """Images where the text has placeholders for them, otherwise in front of it."""
    pieces = text.split(PLACE if PLACE in text else token)
    shown = [image_part(image) for image in images]
    if len(pieces) == 1:
        return [*shown, text_part(text)]
    if len(pieces) - 1 != len(images):
        raise InvalidInput(
            f"the prompt has {len(pieces) - 1} {token!r} placeholder(s), but {len(images)} "
            "image(s) were given. Give one --image for each, or leave all placeholders out."
        )
    parts = [text_part(pieces[0])]
    for image, piece in zip(shown, pieces[1:], strict=True):
        parts += [image, text_part(piece)]
    return [part for part in parts if part["type"] == "image" or part["text"]]


def _moved(value: Any, loaded: Loaded) -> Any:
    """On the model's device; pixels also in its dtype."""
    if not isinstance(value, Tensor):
        return value
    dtype = loaded.model.dtype if value.is_floating_point() else value.dtype
    return value.to(input_device(loaded.model), dtype)
