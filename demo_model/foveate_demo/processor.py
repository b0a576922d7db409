"""Processor of the demo model: text and images to its inputs."""

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
PATCH, COLUMNS = CELL, SLOTS  # a visual token is one cell of the training pages
MAX_ROWS = 32
_MEAN, _STD = 0.5, 0.25  # for pixels between 0 and 1


class DemoProcessor:
    """Processor that scales images to a width of 384 pixels, and inserts their image tokens.

    An image with r rows of cells, at most 32, has 16 r tokens, row by row.
    """

    image_token = "<image>"
    chat_template = "Image 1:\n<image>\n...Question: ...\nAnswer:"  # a sketch; see ``worded``

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.decode, self.batch_decode = tokenizer.decode, tokenizer.batch_decode
        self.image_processor = self  # pipelines with batches look for padding settings on it

    def __call__(
        self,
        images: Image.Image | Sequence[Any] | None = None,
        text: str | Sequence[str] = "",
        return_tensors: str = "pt",
        **options: Any,
    ) -> BatchFeature:
        """Prepare inputs for ``generate``.

        Args:
            images: all images of all texts, in order, flat or nested in lists.
            text: one prompt or several, with an "<image>" for each image.
            return_tensors: only "pt".
            **options: options of the tokenizer; several prompts are padded on the left.

        Returns:
            ``input_ids`` and ``attention_mask`` [b, tokens], and with images ``pixel_values``
            [n, 3, height, width], padded below, and ``image_sizes`` [n, 2] in pixels.

        Raises:
            InvalidInput: numbers of images and placeholders that differ, or another
                ``return_tensors``.
        """
        if return_tensors != "pt":
            raise InvalidInput(f'return_tensors={return_tensors!r} is not offered: use "pt".')
        texts = [text] if isinstance(text, str) else list(text)
        flat = _flat(images)
        placeholders = sum(prompt.count(self.image_token) for prompt in texts)
        if placeholders != len(flat):
            raise InvalidInput(
                f"the text has {placeholders} {self.image_token!r} placeholder(s), but {len(flat)} "
                "image(s) were given. Give one image for each."
            )
        tokens, pixels = self.encode(flat) if flat else ([], {})
        counts = iter(tokens)
        pieces = [prompt.split(self.image_token) for prompt in texts]
        filled = [
            first + "".join(IMAGE * next(counts) + piece for piece in rest)
            for first, *rest in pieces
        ]
        data = dict(self.tokenizer(filled, return_tensors="pt", **{"padding": True, **options}))
        return BatchFeature({**data, **pixels})

    def encode(self, images: Sequence[Image.Image]) -> tuple[list[int], dict[str, Tensor]]:
        """Return the number of tokens of each image, and the inputs of all."""
        fitted = [fit(image) for image in images]
        sizes = [[image.height, image.width] for image in fitted]
        return [COLUMNS * image.height // PATCH for image in fitted], {
            "pixel_values": pixel_values(fitted),
            "image_sizes": torch.tensor(sizes, dtype=torch.long, device="cpu"),
        }

    def apply_chat_template(
        self,
        conversation: Sequence[Any],
        tokenize: bool = False,
        continue_final_message: bool = False,
        processor_kwargs: Mapping[str, Any] | None = None,
        add_vision_id: bool = False,
        **options: Any,
    ) -> str | list[str] | BatchFeature:
        """Format messages as the prompt that the model was trained on.

        Args:
            conversation: messages with "role" and "content": text, or a list of parts, each
                ``{"type": "text", "text": ...}`` or ``{"type": "image", "image": ...}`` (or "url",
                "path", "base64"); or a list of such conversations.
            tokenize: return the model's inputs instead of the text.
            continue_final_message: leave the last message open, for the model to continue.
            processor_kwargs: keyword arguments of the call that prepares the inputs.
            add_vision_id: number a single image as well, e.g. because later messages bring others.
            **options: ignored, for the signature of other processors.

        Raises:
            InvalidInput: a part that is neither text nor an image, or an image that cannot be read.
        """
        several = bool(conversation) and not isinstance(conversation[0], Mapping)
        chats = conversation if several else [conversation]
        style = {"continued": continue_final_message, "numbered": add_vision_id}
        found = [worded(chat, **style) for chat in chats]
        texts = [text for text, _ in found]
        if not tokenize:
            return texts if several else texts[0]
        images = [image for _, mine in found for image in mine]
        return self(images=images, text=texts, **(processor_kwargs or {}))

    def post_process_image_text_to_text(
        self, generated_outputs: Any, skip_special_tokens: bool = True, **options: Any
    ) -> list[str]:
        """Decode generated tokens [b, tokens]; pipelines of transformers call this."""
        texts: list[str] = self.batch_decode(
            generated_outputs, skip_special_tokens=skip_special_tokens, **options
        )
        return texts


def worded(
    conversation: Sequence[Mapping[str, Any]], *, continued: bool = False, numbered: bool = False
) -> tuple[str, list[Image.Image]]:
    """Format a conversation as the demo model was trained on. Return the prompt and its images.

    Several images, or one if ``numbered``, get numbers: "Image 1:" before the first. A user's text
    follows as "Question: ...". "Answer:" ends the prompt, unless the last message is ``continued``.
    """
    lines: list[str] = []
    images: list[Image.Image | None] = []
    for message in conversation:
        words = []
        # later messages do not count: in a chat, what was read is not to be worded otherwise
        total = len(images) + sum(part["type"] == "image" for part in _parts(message))
        for part in _parts(message):
            if part["type"] == "image":
                images.append(_image(part))
                number = f"Image {len(images)}:\n" if numbered or total > 1 else ""
                lines.append(f"{number}{DemoProcessor.image_token}\n")
            else:
                words.append(part["text"].strip())
        speaker = "Answer" if message["role"] == "assistant" else "Question"
        sentence = " ".join(word for word in words if word)
        if sentence:
            lines.append(f"{speaker}: {sentence}\n")
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
    """Return the part's image; None if it is only a placeholder."""
    return None if find_source(part) is None else to_image(part)


def _flat(images: Image.Image | Sequence[Any] | None) -> list[Image.Image]:
    if images is None or isinstance(images, Image.Image):
        return [] if images is None else [images]
    return [image for each in images for image in _flat(each)]


def fit(image: Image.Image) -> Image.Image:
    """Resize an image to a width of 384 pixels and to whole rows of cells, at most 32."""
    width = PATCH * COLUMNS
    rows = round(image.height * width / image.width / PATCH)
    size = (width, PATCH * min(max(rows, 1), MAX_ROWS))
    image = rgb(image)
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def pixel_values(images: Sequence[Image.Image]) -> Tensor:
    """Return normalised pixels, float32 [n, 3, height, width]; lower images are padded below."""
    high = max(image.height for image in images)
    shape = (len(images), 3, high, PATCH * COLUMNS)
    pixels = torch.zeros(shape, dtype=torch.float32, device="cpu")
    for into, image in zip(pixels, images, strict=True):
        seen = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
        into[:, : image.height] = normalised(seen)
    return pixels


def normalised(pixels: Tensor) -> Tensor:
    """Normalise bytes, 0 to 255, for the vision tower."""
    return (pixels.float() / 255 - _MEAN) / _STD
