"""Prompts: a text with images and videos, or messages, as a model's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from foveate.data import Clip
from foveate.errors import InvalidInput
from foveate.hf.model.modality import visual_token_ids
from foveate.loading.model import Loaded
from foveate.prompts import videos
from foveate.prompts.images import image_list, to_image
from foveate.prompts.inputs import encode, moved
from foveate.prompts.messages import Message, media_of, parts_of, text_of
from foveate.prompts.sample import PLACE
from foveate.prompts.special_tokens import Literals, has_first_token
from foveate.prompts.template import check_kept, plain_part, render

Part = dict[str, Any]
"""Part of a message in the form of chat templates: :func:`text_part`, :func:`image_part`,
:func:`video_part`.
"""


@dataclass(frozen=True)
class Prompt:
    """Prompt for a model: ``inputs`` are arguments of ``generate``."""

    inputs: dict[str, Any]
    vision: Tensor  # True at visual tokens, [tokens]
    images: int
    clips: int = 0

    @property
    def visual_tokens(self) -> int:
        """Number of visual tokens."""
        return int(self.vision.sum())

    @property
    def tokens(self) -> int:
        """Length of the prompt with its visual tokens."""
        return int(self.inputs["input_ids"].shape[1])


def read(
    loaded: Loaded,
    text: str,
    images: Any,
    *,
    clips: Sequence[Clip] = (),
    plain: bool = False,
) -> Prompt:
    """Return the prompt of a text and its images.

    Args:
        loaded: the model and its processor or tokenizer.
        text: a user's text, with a placeholder for each image, or without any: images come first.
        images: images of any form, or a single one.
        clips: videos in front of everything else; as images for a processor without videos.
        plain: take the text as the prompt, without a chat template; special tokens in it are then
            read as such.

    Raises:
        InvalidInput: images for a text-only model, or a number of images that differs from that of
            the placeholders.
    """
    images, clips = image_list(images), videos.video_list(clips, "clips")
    _check_sees(loaded, len(images) + len(clips))
    parts = [text_part(text)]
    if loaded.sees:
        parts = interleave(text, images, _placeholder(loaded.reader))
        parts = [*map(video_part, clips), *parts]
    return read_chat(loaded, [{"role": "user", "content": parts}], plain=plain)


def read_chat(loaded: Loaded, messages: Sequence[Message], *, plain: bool = False) -> Prompt:
    """Return the prompt of a conversation, as the model's chat template renders it.

    Without a template, or for a ``plain`` prompt, the parts are joined in order. For a processor
    without videos, frames are images.

    Raises:
        InvalidInput: images for a text-only model, or a text that contains the placeholder of
            images.
    """
    messages = [{**message, "content": parts_of(message)} for message in messages]
    if loaded.sees and not takes_videos(loaded):
        messages = [{**each, "content": _expand_videos(each["content"])} for each in messages]
    images, clips = media_of(messages)
    _check_sees(loaded, len(images) + len(clips))
    # only a template can render videos
    plain = (plain and not clips) or not getattr(loaded.reader, "chat_template", None)
    if loaded.sees:
        _check_texts(messages, _placeholder(loaded.reader))
    inputs = (_read_plain if plain else _read_rendered)(loaded, messages, images, clips)
    if not loaded.sees:
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    ids = inputs["input_ids"]
    visual = torch.isin(ids, ids.new_tensor(visual_token_ids(loaded.model.config)))
    return Prompt(moved(inputs, loaded.model), visual[0], len(images), len(clips))


def text_part(text: str) -> Part:
    """Return a message's part for a text."""
    return {"type": "text", "text": text}


def image_part(image: Any) -> Part:
    """Return a message's part for an image of any form, converted to RGB."""
    return {"type": "image", "image": to_image(image)}


def video_part(clip: Clip) -> Part:
    """Return a message's part for a video."""
    return {"type": "video", "video": clip}


def takes_videos(loaded: Loaded) -> bool:
    """Return True if the processor takes videos; for others their frames are images."""
    return videos.takes_videos(loaded.reader)


def _expand_videos(parts: Sequence[Part]) -> list[Part]:
    """Replace each video among the parts by its frames as images."""
    return [
        image
        for part in parts
        for image in (map(image_part, part["video"].images) if part["type"] == "video" else [part])
    ]


def _check_sees(loaded: Loaded, count: int) -> None:
    if count and not loaded.sees:
        raise InvalidInput(
            f"{loaded.name} reads text only, and {count} image(s) or video(s) were given. Choose a "
            "vision-language model (--model), or leave out --image and --video."
        )


def _placeholder(processor: Any) -> str:
    return str(getattr(processor, "image_token", None) or "<image>")


def _read_plain(
    loaded: Loaded, messages: Sequence[Message], images: Sequence[Any], clips: Sequence[Clip]
) -> dict[str, Any]:
    """Return the inputs of a prompt without a chat template."""
    if clips:
        raise InvalidInput(
            "this model's processor has no chat template, which a video needs: set "
            "processor.chat_template, or give the frames as images."
        )
    token = _placeholder(loaded.reader)
    parts = [part for message in messages for part in message["content"]]
    text = "".join(token if part["type"] == "image" else part["text"] for part in parts)
    return encode(loaded.model, loaded.reader, text, images, nested=False)


def _read_rendered(
    loaded: Loaded, messages: Sequence[Message], images: Sequence[Any], clips: Sequence[Clip]
) -> dict[str, Any]:
    """Return the inputs of a conversation that the processor's chat template renders."""
    literals = Literals(loaded.reader)
    plain = [
        {
            **message,
            "content": [plain_part(part, literals) for part in message["content"]]
            if loaded.sees
            else literals.marked(text_of(message)),
        }
        for message in messages
    ]
    text = _render(loaded.reader, messages, plain)
    # templates of text models write all special tokens themselves, as transformers assumes
    special = None if loaded.sees and not has_first_token(loaded.tokenizer, text) else False
    options: Any = {"literals": literals, "add_special_tokens": special}
    return encode(loaded.model, loaded.reader, text, images, clips, **options)


def _render(reader: Any, messages: Sequence[Message], plain: Sequence[Part]) -> str:
    """Render messages; check that others than a user's, which templates never drop, are kept."""
    if any(message["role"] != "user" for message in messages):
        check_kept(messages, plain, lambda probes: render(reader, probes))
    return render(reader, plain)


def _check_texts(messages: Sequence[Message], token: str) -> None:
    for part in (part for message in messages for part in message["content"]):
        if token in part.get("text", ""):
            raise InvalidInput(
                f"the text {part['text']!r} has the placeholder {token!r} of an image. Remove it: "
                "images are parts of their own."
            )


def interleave(text: str, images: Sequence[Any], token: str) -> list[Part]:
    """Split the text at its placeholders and insert the images; without any, put images first."""
    pieces = text.split(PLACE if PLACE in text else token)
    image_parts: list[Part] = [{"type": "image", "image": image} for image in images]
    if len(pieces) == 1:
        return [*image_parts, text_part(text)]
    if len(pieces) - 1 != len(images):
        raise InvalidInput(
            f"the prompt has {len(pieces) - 1} {token!r} placeholder(s), but {len(images)} "
            "image(s) were given. Give one --image for each, or leave all placeholders out."
        )
    parts = [text_part(pieces[0])]
    for image, piece in zip(image_parts, pieces[1:], strict=True):
        parts += [image, text_part(piece)]
    return [part for part in parts if part["type"] == "image" or part["text"]]
