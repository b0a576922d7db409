"""Scores of attention heads, from their attention while an answer is generated, or from files.

A method whose authors publish scores registers a reader of their files:
``HEAD_FILES["its_name"] = HeadFile(...)``.
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
    """A prompt, and the positions of the texts that it shows.

    ``inputs`` are those of one prompt, as ``generate`` takes them. ``spans`` are texts that its
    tokens show (a line of a document, a needle), each with the indices of these tokens in the
    prompt. ``answer`` is the expected answer, for methods that use it.
    """

    inputs: Mapping[str, Any]
    spans: Sequence[tuple[str, Sequence[int]]]
    answer: str = ""


@runtime_checkable
class HeadReading(Protocol):
    """Measurement of head scores from attention, in two steps, so that little must be stored."""

    def notice(self, attention: Float[Tensor, "hq n"], prompt: Shown) -> Float[Tensor, "hq"]:
        """Return a number per query head from one generated token's attention to the past."""
        ...

    def score(
        self, noticed: Float[Tensor, "s hq"], tokens: Sequence[str], prompt: Shown
    ) -> Float[Tensor, "hq"] | None:
        """Score a layer's heads in an answer of ``s`` tokens; None if it does not count."""
        ...


HEAD_READINGS: Registry[HeadReading] = Registry()


def head_reading(method: str) -> HeadReading:
    """Return the measurement of head scores of a method.

    Raises:
        InvalidInput: the method scores no heads.
    """
    if method not in HEAD_READINGS:
        raise InvalidInput(f"{method!r} scores no heads. {suggest(method, HEAD_READINGS)}")
    return HEAD_READINGS[method]


class HeadFile(NamedTuple):
    """Reader of published head scores.

    ``read`` returns the scores of all ``kind`` heads of a file, [layers, heads] in float64 on the
    CPU, and the number of samples that they are the mean of; it raises InvalidInput for other
    files. ``only``: such scores cannot be measured here, only read from files.
    """

    kind: Literal["query", "KV"]
    read: Callable[[str | Path], tuple[Float[Tensor, "L h"], int]]
    only: bool = True


HEAD_FILES: Registry[HeadFile] = Registry()
"""Readers of published head scores, by the name of the method."""


def read(path: str | Path) -> tuple[Float[Tensor, "L hq"], int]:
    """Read scores of heads from a JSON object that maps "layer-head" to one score per sample.

    Returns:
        The mean score of every query head, in float64, and the number of samples.

    Raises:
        InvalidInput: the file does not exist, is no such object, or lacks a head.
    """
    try:
        record = read_record(Path(path)).fields
        means = {_parse_key(name): _mean(scores) for name, scores in record.items()}
        samples = max(len(s) if isinstance(s, list) else 1 for s in record.values())
    except (ValueError, TypeError, OverflowError) as error:  # InvalidInput is a ValueError
        raise InvalidInput(
            f"{path} holds no scores of heads ({error}); expected a JSON object such as "
            '{"0-0": [0.5, ...], "0-1": ...}, layer and query head.'
        ) from error
    layers, heads = (1 + max(key[i] for key in means) for i in (0, 1))
    keys = ((a, b) for a in range(layers) for b in range(heads))
    missing = [f"{a}-{b}" for a, b in islice((key for key in keys if key not in means), 6)]
    if missing:
        raise InvalidInput(
            f"{path} lacks the heads {', '.join(missing[:5])}{', ...' if missing[5:] else ''} of "
            f"{layers} layers with {heads} heads."
        )
    rows = [[means[layer, head] for head in range(heads)] for layer in range(layers)]
    return torch.tensor(rows, dtype=torch.float64, device="cpu"), samples


def of_kv_heads(scores: Float[Tensor, "L hq"], heads: int) -> Float[Tensor, "L h"]:
    """Return the mean over the query heads that share a KV head."""
    layers, query_heads = scores.shape
    if query_heads % heads:
        raise InvalidInput(f"{query_heads} query heads cannot share {heads} KV heads evenly.")
    return scores.view(layers, heads, query_heads // heads).mean(-1)


def is_read(method: str) -> bool:
    """Return True if a method's profiles are trained, and can only be read from files here."""
    trained = method in HEAD_FILES and method not in HEAD_READINGS
    return trained and HEAD_FILES[method].only


def instruction_for(method: str) -> str:
    """Return an instruction that creates a profile of this method."""
    if is_read(method):
        return f"Make one with foveate.import_head_scores(model, '{method}', FILE)"
    return f"Make one with 'foveate calibrate {method} --model MODEL'"


def _parse_key(name: str) -> tuple[int, int]:
    numbers = re.fullmatch(r"(\d+)-(\d+)", name)
    if numbers is None:
        raise ValueError(f"{name!r} is no layer and head")
    return int(numbers[1]), int(numbers[2])


def _mean(scores: Any) -> float:
    values = [float(x) for x in (scores if isinstance(scores, list) else [scores])]
    if not values or not all(math.isfinite(x) and x >= 0 for x in values):
        raise ValueError(f"{scores!r} are no scores")
    return sum(values) / len(values)
