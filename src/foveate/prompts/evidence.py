"""On which tokens of a prompt a text stands."""

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
    """For every span the indices of its tokens in the prompt; none where a processor crops an image
    and cuts it off.

    Raises:
        InvalidInput: a text that the prompt does not hold, or images whose tokens are not known.
    """
    where: list[ImageTokens] = []
    if any(span.image is not None for span in spans):
        where = on_images(loaded, prompt, images)
    return [
        in_text(loaded, prompt, span.text)
        if span.image is None
        else where[span.image].under(span.box, images[span.image].size)
        for span in spans
    ]


def on_images(loaded: Loaded, prompt: Prompt, images: Sequence[Image.Image]) -> list[ImageTokens]:
    """The tokens of each image of a prompt, and where on it they stand.

    Raises:
        InvalidInput: that is not known for this model and its processor.
    """
    sizes, config = [image.size for image in images], loaded.model.config
    tokens = image_tokens(prompt.vision, prompt.inputs, sizes, config, loaded.reader)
    if tokens is None:
        raise InvalidInput(f"{not_known(config, loaded.reader)}.")
    return tokens


def in_text(loaded: Loaded, prompt: Prompt, text: str, last: bool = False) -> tuple[int, ...]:
    """The tokens that hold the characters of a text, where it stands first, or last.

    Raises:
        InvalidInput: the prompt does not hold it.
    """
    ids = prompt.inputs["input_ids"][0].tolist()
    pieces = [loaded.tokenizer.decode([token]) for token in ids]
    whole = "".join(pieces)
    start = whole.rfind(text) if last else whole.find(text)
    if start < 0:
        raise InvalidInput(f"the prompt does not hold the text {text!r}.")
    ends = torch.tensor([len(piece) for piece in pieces], dtype=torch.long, device="cpu").cumsum(0)
    first = int((ends <= start).sum())
    return tuple(range(first, 1 + int((ends < start + len(text)).sum())))
