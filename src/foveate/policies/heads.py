"""How a method scores attention heads: by where they look as an answer is generated, or by scores
that its authors publish.

A method whose authors do says how their files are read: ``HEAD_FILES["its_name"] = HeadFile(...)``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from foveate.data import read_record
from foveate.errors import InvalidInput, suggest
from foveate.policies.registry import Registry


@dataclass(frozen=True)
class Shown:
    """A prompt, and where it shows what.

    ``inputs`` are those of one prompt, as ``generate`` takes them. ``spans`` are texts that its
    tokens show (a line of a document, a needle), each with the indices of these tokens in the
    prompt. ``answer`` is what the model should say, where a method wants to know.
    """

    inputs: Mapping[str, Any]
    spans: Sequence[tuple[str, Sequence[int]]]
    answer: str = ""


@runtime_checkable
class HeadReading(Protocol):
    """What is read off the attention, in two steps, so that little has to be remembered."""

    def notice(self, attention: Float[Tensor, "hq n"], shown: Shown) -> Float[Tensor, "hq"]:
        """Of the query that a token is generated from: what it pays to prompt and answer so far."""
        ...

    def score(
        self, noticed: Float[Tensor, "s hq"], tokens: Sequence[str], shown: Shown
    ) -> Float[Tensor, "hq"] | None:
        """One layer's heads in one answer of ``s`` tokens; None if the answer does not count."""
        ...


HEAD_READINGS: Registry[HeadReading] = Registry()


def head_reading(method: str) -> HeadReading:
    """How the method of that name scores heads.

    Raises:
        InvalidInput: it scores none.
    """
    if method not in HEAD_READINGS:
        raise InvalidInput(f"{method!r} scores no heads. {suggest(method, HEAD_READINGS)}")
    return HEAD_READINGS[method]


class HeadFile(NamedTuple):
    """``read`` gives the scores of all ``kind`` heads of a file, [layers, heads] in float64 on the
    CPU, and how many samples they are the mean of; it raises InvalidInput for what is no such file.
    ``only``: the file is the one way to such scores, as they are not measured here.
    """

    kind: Literal["query", "KV"]
    read: Callable[[str | Path], tuple[Float[Tensor, "L h"], int]]
    only: bool = True


HEAD_FILES: Registry[HeadFile] = Registry()
"""By the name of the method."""


def read(path: str | Path) -> tuple[Float[Tensor, "L hq"], int]:
    """Of a JSON object that maps "layer-head", of query heads, to a list of scores, one a sample:
    the mean score of every query head, in float64, and how many samples it is the mean of.

    Raises:
        InvalidInput: no such file, no such object, or one that lacks a head.
    """
    try:
        held = read_record(Path(path)).fields
        means = {_place(name): _mean(scores) for name, scores in held.items()}
        samples = max(len(s) if isinstance(s, list) else 1 for s in held.values())
    except (ValueError, TypeError, OverflowError) as error:  # InvalidInput is a ValueError
        raise InvalidInput(
            f"{path} holds no scores of heads ({error}); expected a JSON object such as "
            '{"0-0": [0.5, ...], "0-1": ...}, layer and query head.'
        ) from error
    layers, heads = (1 + max(place[i] for place in means) for i in (0, 1))
    places = ((a, b) for a in range(layers) for b in range(heads))
    missing = [f"{a}-{b}" for a, b in islice((one for one in places if one not in means), 6)]
    if missing:
        raise InvalidInput(
            f"{path} lacks the heads {', '.join(missing[:5])}{', ...' if missing[5:] else ''} of "
            f"{layers} layers with {heads} heads."
        )
    rows = [[means[layer, head] for head in range(heads)] for layer in range(layers)]
    return torch.tensor(rows, dtype=torch.float64, device="cpu"), samples


def of_kv_heads(scores: Float[Tensor, "L hq"], heads: int) -> Float[Tensor, "L h"]:
    """The mean over the query heads that share a KV head."""
    layers, query_heads = scores.shape
    if query_heads % heads:
        raise InvalidInput(f"{query_heads} query heads cannot share {heads} KV heads evenly.")
    return scores.view(layers, heads, query_heads // heads).mean(-1)


def is_read(method: str) -> bool:
    """Whether its profiles are trained, and only read from their authors' files here."""
    trained = method in HEAD_FILES and method not in HEAD_READINGS
    return trained and HEAD_FILES[method].only


def made_by(method: str) -> str:
    """How a profile of that method is made."""
    if is_read(method):
        return f"Make one with foveate.import_head_scores(model, '{method}', FILE)"
    return f"Make one with 'foveate calibrate {method} --model MODEL'"


def _place(name: str) -> tuple[int, int]:
    numbers = re.fullmatch(r"(\d+)-(\d+)", name)
    if numbers is None:
        raise ValueError(f"{name!r} is no layer and head")
    return int(numbers[1]), int(numbers[2])


def _mean(scores: Any) -> float:
    values = [float(x) for x in (scores if isinstance(scores, list) else [scores])]
    if not values or not all(math.isfinite(x) and x >= 0 for x in values):
        raise ValueError(f"{scores!r} are no scores")
    return sum(values) / len(values)
