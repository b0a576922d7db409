"""Text and images to the demo model's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import BatchFeature, PreTrainedTokenizerBase

from foveate.data import rgb
from foveate.errors import InvalidInput
from foveate.prompts.images import find_source, to_image
from foveate_demo.scenes import CELL, SLOTS

IMAGE = "<file_sep>"  # a special token of the language model that its chats never use
PATCH, COLUMNS = CELL, SLOTS  # a visual token is a cell of what the model was trained on
MAX_ROWS = 32
_MEAN, _STD = 0.5, 0.25  # of pixels between 0 and 1


class DemoProcessor:
    """Puts the right number of image tokens into the text, and scales images to 384 pixels' width.

    An image of r rows of cells, at most 32, is 16 r tokens, row by row.
    """

    image_token = "<image>"
    chat_template = "Image 1:\n<image>\n...Question: ...\nAnswer:"  # in words; see ``worded``

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.decode, self.batch_decode = tokenizer.decode, tokenizer.batch_decode
        self.image_processor = self  # pipelines that batch ask it how to pad, which it need not say

    def __call__(
        self,
        images: Image.Image | Sequence[Any] | None = None,
        text: str | Sequence[str] = "",
        return_tensors: str = "pt",
        **options: Any,
    ) -> BatchFeature:
        """What ``generate`` takes.

        Args:
            images: all images of all texts, in order; a list for each text is taken, too.
            text: one prompt or several, with "<image>" where an image stands.
            return_tensors: only "pt".
            **options: for the tokenizer; several prompts are padded on the left.

        Returns:
            ``input_ids`` and ``attention_mask`` [b, tokens], and with images ``pixel_values``
            [n, 3, height, width], padded below, and ``image_sizes`` [n, 2] in pixels.

        Raises:
            InvalidInput: images and places for them differ in number, or not PyTorch's tensors.
        """
        if return_tensors != "pt":
            raise InvalidInput(f'return_tensors={return_tensors!r} is not offered: use "pt".')
        texts = [text] if isinstance(text, str) else list(text)
        shown = _flat(images)
        places = sum(one.count(self.image_token) for one in texts)
        if places != len(shown):
            raise InvalidInput(
                f"the text has {places} {self.image_token!r} placeholder(s), but {len(shown)} "
                "image(s) were given. Give one image for each."
            )
        fitted = [fit(image) for image in shown]
        counts = iter([COLUMNS * image.height // PATCH for image in fitted])
        pieces = [one.split(self.image_token) for one in texts]
        filled = [
            first + "".join(IMAGE * next(counts) + piece for piece in rest)
            for first, *rest in pieces
        ]
        data = dict(self.tokenizer(filled, return_tensors="pt", **{"padding": True, **options}))
        if fitted:
            data["pixel_values"] = pixel_values(fitted)
            data["image_sizes"] = torch.tensor(
                [[im.height, im.width] for im in fitted], dtype=torch.long, device="cpu"
            )
        return BatchFeature(data)

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        tokenize: bool = False,
        continue_final_message: bool = False,
        processor_kwargs: Mapping[str, Any] | None = None,
        add_vision_id: bool = False,
        **options: Any,
    ) -> str | list[str] | BatchFeature:
        """Words messages as the model knows them; ``tokenize`` also makes the inputs.

        Args:
            conversation: messages with "role" and "content": text, or a list of parts, each
                ``{"type": "text", "text": ...}`` or ``{"type": "image", "image": ...}`` (or "url",
                "path", "base64"); or a list of such conversations.
            tokenize: whether to return the inputs instead of the text.
            continue_final_message: whether the model goes on with the last message.
            processor_kwargs: for the call that makes the inputs.
            add_vision_id: numbers an image that stands alone, too, as others may follow it.
            **options: as other processors take them; inputs are always PyTorch's.

        Raises:
            InvalidInput: a part that is no text and no image, or an image that cannot be read.
        """
        several = bool(conversation) and not isinstance(conversation[0], Mapping)
        chats = conversation if several else [conversation]
        how = {"continued": continue_final_message, "numbered": add_vision_id}
        found = [worded(chat, **how) for chat in chats]
        texts = [text for text, _ in found]
        if not tokenize:
            return texts if several else texts[0]
        images = [image for _, mine in found for image in mine]
        return self(images=images, text=texts, **(processor_kwargs or {}))

    def post_process_image_text_to_text(
        self, generated_outputs: Any, skip_special_tokens: bool = True, **options: Any
    ) -> list[str]:
        """The texts of generated tokens [b, tokens], as pipelines ask for them."""
        texts: list[str] = self.batch_decode(
            generated_outputs, skip_special_tokens=skip_special_tokens, **options
        )
        return texts


def worded(
    conversation: Sequence[Mapping[str, Any]], *, continued: bool = False, numbered: bool = False
) -> tuple[str, list[Image.Image]]:
    """The prompt that the demo model was trained on, and its images.

    One image stands alone; several, or any if ``numbered``, have numbers, "Image 1:" before the
    first. Then come a user's words as "Question: ...", and "Answer:" ends the prompt, unless the
    last message is continued.
    """
    total = sum(part["type"] == "image" for m in conversation for part in _parts(m))
    lines, images = [], []
    for message in conversation:
        words = []
        for part in _parts(message):
            if part["type"] == "image":
                images.append(_image(part))
                number = f"Image {len(images)}:\n" if numbered or total > 1 else ""
                lines.append(f"{number}{DemoProcessor.image_token}\n")
            else:
                words.append(part["text"].strip())
        who = "Answer" if message["role"] == "assistant" else "Question"
        said = " ".join(word for word in words if word)
        if said:
            lines.append(f"{who}: {said}\n")
    text = "".join(lines).removesuffix("\n") if continued else f"{''.join(lines)}Answer:"
    return text, [image for image in images if image is not None]


def _parts(message: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    content = message["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    for part in content:
        if part["type"] not in ("text", "image"):
            raise InvalidInput(
                f"a message has a part of type {part['type']!r}: the demo model reads parts of "
                'type "text" and "image" only.'
            )
    parts: Sequence[Mapping[str, Any]] = content
    return parts


def _image(part: Mapping[str, Any]) -> Image.Image | None:
    """Return the part's image; None where it only holds the place of one."""
    return None if find_source(part) is None else to_image(part)


def _flat(images: Image.Image | Sequence[Any] | None) -> list[Image.Image]:
    if images is None or isinstance(images, Image.Image):
        return [] if images is None else [images]
    return [image for each in images for image in _flat(each)]


def fit(image: Image.Image) -> Image.Image:
    """384 pixels wide, and as many whole rows of cells high as its shape wants, at most 32."""
    width = PATCH * COLUMNS
    rows = round(image.height * width / image.width / PATCH)
    size = (width, PATCH * min(max(rows, 1), MAX_ROWS))
    image = rgb(image)
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def pixel_values(images: Sequence[Image.Image]) -> Tensor:
    """Float32 [n, 3, height, width] around zero; what is lower than the highest is padded below."""
    high = max(image.height for image in images)
    shape = (len(images), 3, high, PATCH * COLUMNS)
    pixels = torch.zeros(shape, dtype=torch.float32, device="cpu")
    for into, image in zip(pixels, images, strict=True):
        seen = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
        into[:, : image.height] = normalised(seen)
    return pixels


def normalised(pixels: Tensor) -> Tensor:
    """Bytes, 0 to 255, to what the vision tower takes."""
    return (pixels.float() / 255 - _MEAN) / _STD
