"""What policies keep of a prompt of the demo model: what pictures in the docs are drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

import foveate
from foveate.backends.hf.modality import Grid, grids
from foveate.eval.model import SEES, Loaded, load
from foveate.eval.prompt import read
from foveate.report.lens.chosen import Seen, seen
from foveate.report.lens.prompt import words
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
    """What a policy keeps: the share of all KV heads that hold each token, [tokens], and the share
    of the prompt that each head of each layer holds, [layers, heads].
    """

    tokens: Tensor
    heads: Tensor


@cache
def demo() -> Loaded:
    """The demo model, once."""
    return load(SEES)


@cache
def example(question: str = QUESTION) -> Example:
    """The album's second image, and a question about it."""
    image = album.images()[1]
    prompt = read(demo(), question, [image])
    (grid,) = grids(prompt.vision, prompt.inputs, 1, demo().model.config)
    said = words(demo().reader.tokenizer, prompt.inputs["input_ids"][0].tolist())
    after = [(word.text, at) for at, word in enumerate(said) if at > max(grid.places)]
    return Example(image, grid, after, prompt.inputs, prompt.tokens)


def held(specs: Sequence[str], question: str = QUESTION) -> dict[str, Held]:
    """What each policy keeps of the example when its prompt is complete; the prompt is read once
    or twice, whatever the number of policies.
    """
    policies = [foveate.policy(spec) for spec in specs]
    found = seen(demo().model, example(question).inputs, [policies], demo().reader)
    return {
        spec: _held(found, choice.kept)
        for spec, choice in zip(specs, found.choices[0], strict=True)
    }


def _held(found: Seen, kept: Tensor) -> Held:
    share = kept.float().mean(1).view(len(found.layers), found.heads[0])
    return Held(kept.float().mean(0), share)
