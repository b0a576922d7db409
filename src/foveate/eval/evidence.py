"""On which tokens of a prompt a text stands."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image

from foveate.backends.hf.modality import Grid, grids, tokens_in
from foveate.errors import InvalidInput
from foveate.eval.model import Loaded
from foveate.eval.prompt import Prompt
from foveate.eval.sample import Span


def tokens_of(
    loaded: Loaded, prompt: Prompt, images: Sequence[Image.Image], spans: Sequence[Span]
) -> list[tuple[int, ...]]:
    """For every span the indices of its tokens in the prompt.

    Raises:
        InvalidInput: a text that the prompt does not hold, or images whose tokens are not known.
    """
    where: list[Grid] = []
    if any(span.image is not None for span in spans):
        where = grids(prompt.vision, prompt.inputs, len(images), loaded.model.config)
    return [
        in_text(loaded, prompt, span.text)
        if span.image is None
        else tokens_in(where[span.image], span.box, images[span.image].size)
        for span in spans
    ]


def image_tokens(loaded: Loaded, prompt: Prompt) -> list[int]:
    """How many tokens each image of a prompt is; evenly shared out where grids are not known."""
    try:
        found = grids(prompt.vision, prompt.inputs, prompt.images, loaded.model.config)
        return [len(grid.places) for grid in found]
    except InvalidInput:
        return [-(-prompt.visual_tokens // prompt.images)] * prompt.images


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
