"""A language model that judges answers which no rule can score: yours."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from foveate.errors import InvalidInput
from foveate.prompts.sample import Sample


@runtime_checkable
class Judge(Protocol):
    """A prompt in, what the language model says to it out."""

    def __call__(self, prompt: str) -> str: ...


Judged = Callable[[Judge, str, Sample], float | None]
"""Scores a prediction with a judge."""


def unscored(prediction: str, sample: Sample) -> None:
    """No score: of this task a judge has to say how good an answer is."""


def find_judge(name: str) -> Judge:
    """The judge named "module:callable"; the module has to be importable (``PYTHONPATH``).

    Raises:
        InvalidInput: no such module, or nothing in it that can be called.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise InvalidInput(f"a judge is written module:callable, not {name!r}.")
    try:
        candidate = getattr(importlib.import_module(module), attribute, None)
    except ImportError as error:
        raise InvalidInput(
            f"the judge's module {module!r} cannot be imported: {error}. Is it on PYTHONPATH?"
        ) from error
    if not callable(candidate):
        raise InvalidInput(f"{module} has no {attribute!r} that can be called.")
    judge: Judge = candidate
    return judge


def said_by(judge: Judge, prompt: str) -> str:
    """The judge's reply.

    Raises:
        InvalidInput: it is no text.
    """
    reply = judge(prompt)
    if not isinstance(reply, str):
        raise InvalidInput(f"the judge replied with {type(reply).__name__}, not with text.")
    return reply.strip()
