"""Judges: language models, provided by the user, that score answers no rule can score."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from foveate.errors import InvalidInput
from foveate.prompts.sample import Sample


@runtime_checkable
class Judge(Protocol):
    """Callable from a prompt to a language model's reply."""

    def __call__(self, prompt: str) -> str: ...


Judged = Callable[[Judge, str, Sample], float | None]
"""Function that scores a prediction with a judge."""


def unscored(prediction: str, sample: Sample) -> None:
    """Return None: the task's answers need a judge."""


def find_judge(name: str) -> Judge:
    """Import the judge named "module:callable" (``PYTHONPATH``).

    Raises:
        InvalidInput: no such module, or no such callable in it.
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


def reply_of(judge: Judge, prompt: str) -> str:
    """Return the judge's reply without surrounding blanks.

    Raises:
        InvalidInput: the reply is not text.
    """
    reply = judge(prompt)
    if not isinstance(reply, str):
        raise InvalidInput(f"the judge replied with {type(reply).__name__}, not with text.")
    return reply.strip()
