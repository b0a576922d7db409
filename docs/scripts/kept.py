"""What policies keep of a prompt of the demo model: what pictures in the docs are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

import foveate
from foveate.defaults import SEES
from foveate.loading.model import Loaded, load
from foveate.models.token_grids import Grid
from foveate.pictures.lens.choices import Readings, seen
from foveate.pictures.lens.page import words
from foveate.prompts.evidence import on_images
from foveate.prompts.prompt import read
from foveate_demo import album

QUESTION = album.QUESTION


class Example(NamedTuple):
    """An image with a question, as the demo model reads them.

    ``words`` are the tokens after the image, in order: their text and their place in the prompt.
    """

    image: Image.Image
    grid: Grid
    words: list[tuple[str, int]]
    inputs: dict[str, Any]
    tokens: int


class Held(NamedTuple):
    """What a policy keeps, as ``kept`` [layers, heads, tokens] of zeros and ones."""

    kept: Tensor

    @property
    def tokens(self) -> Tensor:
        """The share of all KV heads that hold each token, [tokens]."""
        return self.kept.mean((0, 1))

    @property
    def heads(self) -> Tensor:
        """The share of the prompt that each head holds, [layers, heads]."""
        return self.kept.mean(2)


@cache
def demo() -> Loaded:
    """The demo model, once."""
    return load(SEES)


@cache
def example(question: str = QUESTION) -> Example:
    """The album's second image, and a question about it; the image alone if there is none, ""."""
    image = album.images()[1]
    prompt = read(demo(), question or "\n", [image], plain=not question)
    ((_, (grid,)),) = on_images(demo(), prompt, [image])
    said = words(demo().reader.tokenizer, prompt.inputs["input_ids"][0].tolist())
    after = [(word.text, at) for at, word in enumerate(said) if at > max(grid.indices)]
    return Example(image, grid, after, prompt.inputs, prompt.tokens)


def held(specs: Sequence[str], question: str = QUESTION) -> dict[str, Held]:
    """What each policy keeps of the example when its prompt is complete; the prompt is read once
    or twice, whatever the number of policies.
    """
    policies = [foveate.policy(spec) for spec in specs]
    readings = Readings(demo().model, example(question).inputs)
    found = seen(readings, [policies], demo().reader)
    return {
        spec: Held(choice.kept.float().unflatten(0, (len(found.layers), -1)))
        for spec, choice in zip(specs, found.choices[0], strict=True)
    }
