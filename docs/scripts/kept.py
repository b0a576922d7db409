"""KV pairs that policies keep of a demo prompt, the data of the docs' pictures."""

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

    ``words`` are the tokens after the image, in order: their text and their index in the prompt.
    """

    image: Image.Image
    grid: Grid
    words: list[tuple[str, int]]
    inputs: dict[str, Any]
    tokens: int


class Kept(NamedTuple):
    """A policy's kept pairs: ``kept`` [layers, heads, tokens] consists of zeros and ones."""

    kept: Tensor

    @property
    def tokens(self) -> Tensor:
        """Share of all KV heads that keep each token, [tokens]."""
        return self.kept.mean((0, 1))

    @property
    def heads(self) -> Tensor:
        """Share of the prompt that each head keeps, [layers, heads]."""
        return self.kept.mean(2)


@cache
def demo() -> Loaded:
    """Load the demo model once."""
    return load(SEES)


@cache
def example(question: str = QUESTION) -> Example:
    """Read the album's second image and a question; the image alone if the question is ""."""
    image = album.images()[1]
    prompt = read(demo(), question or "\n", [image], plain=not question)
    (tokens,) = on_images(demo(), prompt, [image])
    (grid,) = tokens.grids
    tokens = words(demo().reader.tokenizer, prompt.inputs["input_ids"][0].tolist())
    after = [(word.text, at) for at, word in enumerate(tokens) if at > max(grid.indices)]
    return Example(image, grid, after, prompt.inputs, prompt.tokens)


def apply_policies(specs: Sequence[str], question: str = QUESTION) -> dict[str, Kept]:
    """Return the pairs that each policy keeps of the example after its prompt, by spec.

    The prompt is read once or twice, whatever the number of policies.
    """
    policies = [foveate.policy(spec) for spec in specs]
    readings = Readings(demo().model, example(question).inputs)
    found = seen(readings, [policies], demo().reader)
    return {
        spec: Kept(choice.kept.float().unflatten(0, (len(found.layers), -1)))
        for spec, choice in zip(specs, found.choices[0], strict=True)
    }
