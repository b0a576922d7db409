"""Positions of a text among the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image

from foveate.errors import InvalidInput
from foveate.loading.model import Loaded
from foveate.models.token_grids import ImageTokens, image_tokens, not_known
from foveate.prompts.prompt import Prompt
from foveate.prompts.sample import Span


def tokens_of(
    loaded: Loaded, prompt: Prompt, images: Sequence[Image.Image], spans: Sequence[Span]
) -> list[tuple[int, ...]]:
    """Return the indices of every span's tokens in the prompt; none if the processor crops it off.

    Raises:
        InvalidInput: the prompt lacks a text, or the cells of the images' tokens are not known.
    """
    images_tokens: list[ImageTokens] = []
    if any(span.image is not None for span in spans):
        images_tokens = on_images(loaded, prompt, images)
    return [
        in_text(loaded, prompt, span.text)
        if span.image is None
        else images_tokens[span.image].under(span.box, images[span.image].size)
        for span in spans
    ]


def on_images(loaded: Loaded, prompt: Prompt, images: Sequence[Image.Image]) -> list[ImageTokens]:
    """Return the tokens of each image of a prompt, with their cells on the image.

    Raises:
        InvalidInput: they are not known for this model and its processor.
    """
    sizes, config = [image.size for image in images], loaded.model.config
    tokens = image_tokens(prompt.vision, prompt.inputs, sizes, config, loaded.reader)
    if tokens is None:
        raise InvalidInput(f"{not_known(config, loaded.reader)}.")
    return tokens


def in_text(loaded: Loaded, prompt: Prompt, text: str, last: bool = False) -> tuple[int, ...]:
    """Return the tokens of a text's first occurrence in the prompt, or of its last.

    Raises:
        InvalidInput: the prompt does not contain it.
    """
    ids = prompt.inputs["input_ids"][0].tolist()
    pieces = [loaded.tokenizer.decode([token]) for token in ids]
    complete = "".join(pieces)
    start = complete.rfind(text) if last else complete.find(text)
    if start < 0:
        raise InvalidInput(f"the prompt does not contain the text {text!r}.")
    ends = torch.tensor([len(piece) for piece in pieces], dtype=torch.long, device="cpu").cumsum(0)
    first = int((ends <= start).sum())
    return tuple(range(first, 1 + int((ends < start + len(text)).sum())))
