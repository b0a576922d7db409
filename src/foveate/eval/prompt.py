"""From a text and images to the tensors that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from foveate.backends.hf.modality import visual_token_ids
from foveate.core.errors import InvalidInput
from foveate.eval.model import Loaded
from foveate.eval.sample import PLACE


@dataclass(frozen=True)
class Prompt:
    """What the model is asked: ``inputs`` go to ``generate``."""

    inputs: dict[str, Any]
    vision: Tensor  # True at visual tokens, [tokens]
    images: int

    @property
    def visual_tokens(self) -> int:
        """How many tokens stand for images."""
        return int(self.vision.sum())

    @property
    def tokens(self) -> int:
        """Length of the prompt, image tokens included."""
        return int(self.inputs["input_ids"].shape[1])


def read(
    loaded: Loaded, text: str, images: Sequence[Image.Image], *, plain: bool = False
) -> Prompt:
    """The prompt as the model's chat template words it, or the plain text if it has none or is not
    to be asked.

    Raises:
        InvalidInput: images for a model that reads text only, or another number of images than
            the text has places for.
    """
    if images and not loaded.sees:
        raise InvalidInput(
            f"{loaded.name} reads text only, and {len(images)} image(s) were given. Choose a "
            "vision-language model with --model, or leave out --image."
        )
    try:
        if loaded.sees:
            encoded = _see(loaded.reader, text, images, plain)
        else:
            encoded = _words(loaded.reader, text, plain)
    except ValueError as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{loaded.name} cannot read this prompt: {error}") from error
    ids = encoded["input_ids"]
    visual = torch.isin(ids, torch.tensor(visual_token_ids(loaded.model.config)))
    inputs = {name: _moved(value, loaded) for name, value in encoded.items()}
    return Prompt(inputs, visual[0], len(images))


def _words(tokenizer: Any, text: str, plain: bool) -> dict[str, Any]:
    if tokenizer.chat_template and not plain:
        encoded = _chat(tokenizer, text)
    else:
        encoded = tokenizer(text, return_tensors="pt")
    return {name: encoded[name] for name in ("input_ids", "attention_mask")}


def _see(
    processor: Any, text: str, images: Sequence[Image.Image], as_it_is: bool
) -> dict[str, Any]:
    token = str(getattr(processor, "image_token", None) or "<image>")
    parts = _parts(text, images, token)
    if getattr(processor, "chat_template", None) and not as_it_is:
        return dict(_chat(processor, parts))
    plain = "".join(token if part["type"] == "image" else part["text"] for part in parts)
    return dict(processor(text=plain, images=list(images) or None, return_tensors="pt"))


def _chat(reader: Any, content: Any) -> Any:
    """The content as a user's message, with the answer about to begin."""
    return reader.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt",
    )  # fmt: skip


def _parts(text: str, images: Sequence[Image.Image], token: str) -> list[dict[str, Any]]:
    """Images where the text has placeholders for them, otherwise in front of it."""
    pieces = text.split(PLACE if PLACE in text else token)
    shown: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    if len(pieces) == 1:
        return [*shown, {"type": "text", "text": text}]
    if len(pieces) - 1 != len(images):
        raise InvalidInput(
            f"the prompt has {len(pieces) - 1} {token!r} placeholder(s), but {len(images)} "
            "image(s) were given. Give one --image for each, or leave all placeholders out."
        )
    parts = [{"type": "text", "text": pieces[0]}]
    for image, piece in zip(shown, pieces[1:], strict=True):
        parts += [image, {"type": "text", "text": piece}]
    return [part for part in parts if part["type"] == "image" or part["text"]]


def _moved(value: Any, loaded: Loaded) -> Any:
    """On the model's device; pixels also in its dtype."""
    if not isinstance(value, Tensor):
        return value
    dtype = loaded.model.dtype if value.is_floating_point() else value.dtype
    return value.to(loaded.model.device, dtype)


def shortened(tokenizer: Any, text: str, most: int | None) -> str:
    """The text without its middle where it has more than so many tokens (LongBench)."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"] if most else []
    if not most or len(ids) <= most:
        return text
    half = most // 2
    return "".join(
        tokenizer.decode(part, skip_special_tokens=True) for part in (ids[:half], ids[-half:])
    )
