"""What is said in a turn, as messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from foveate.errors import InvalidInput
from foveate.prompts.template import Message, parts_of, text_of


def new_messages(
    text: str | None,
    images: Sequence[Any],
    videos: Sequence[Any],
    system: str | None,
    messages: Sequence[Message],
) -> tuple[Message, ...]:
    """What is new, as messages."""
    for name, given in (("images", images), ("videos", videos)):
        if isinstance(given, str | Path) or not isinstance(given, Sequence):
            one = name.upper().removesuffix("S")
            raise InvalidInput(f"this {type(given).__name__} is no list: give {name}=[{one}].")
    parts: list[dict[str, Any]] = [{"type": "image", "image": image} for image in images]
    parts += [{"type": "video", "video": video} for video in videos]
    if text is not None:
        parts.append({"type": "text", "text": text})
    new = [*messages, *([{"role": "user", "content": parts}] if parts else [])]
    if not new:
        raise InvalidInput("nothing is said: give a text, images, or messages.")
    if system is not None:
        new.insert(0, {"role": "system", "content": system})
    for message in new:
        parts_of(message)
    return tuple(new)


def check_new(old: Sequence[Message], new: Sequence[Message]) -> None:
    """Raises InvalidInput for a whole conversation, which other libraries are given every time."""
    first = new[: len(old)]
    if old and len(new) > len(old) and [_said(one) for one in first] == [_said(one) for one in old]:
        raise InvalidInput(
            f"these messages begin with the {len(old)} that were said before, which the chat "
            "holds: give the new ones alone, and the pixels of new images alone."
        )


def _said(message: Message) -> tuple[str, str]:
    return message["role"], text_of(message)


def edited(new: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """The messages, with another text in the last of a user."""
    last = max((i for i, one in enumerate(new) if one["role"] == "user"), default=None)
    if last is None:
        raise InvalidInput("the latest turn has no message of a user to edit.")
    parts = [part for part in parts_of(new[last]) if part["type"] != "text"]
    edited = {**new[last], "content": [*parts, {"type": "text", "text": text}]}
    return (*new[:last], edited, *new[last + 1 :])
