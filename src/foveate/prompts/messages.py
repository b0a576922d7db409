"""Messages of a conversation, and the text, images and videos that they consist of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from foveate.errors import InvalidInput
from foveate.prompts.images import find_source, image_list, to_image
from foveate.prompts.videos import frames_of, video_list

Message = Mapping[str, Any]
"""``{"role": "user", "content": TEXT or [parts]}``, the form of chat templates and OpenAI's API."""

_KINDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "image": "image",
    "input_image": "image",
    "image_url": "image",
    "video": "video",
}
"""Types of parts, including those of OpenAI's API, by their names in chat templates."""


def new_messages(
    text: str | Sequence[Message] | None,
    images: Any = (),
    videos: Any = (),
    system: str | None = None,
    messages: Sequence[Message] = (),
) -> tuple[Message, ...]:
    """Return the messages of a turn.

    Args:
        text: the user's text, or a list of messages.
        images: images of any form, or a single one, in front of the text.
        videos: clips or frames, or a single one, after the images.
        system: text of a system message in front of everything.
        messages: messages in front of ``text``.

    Raises:
        InvalidInput: an argument or message of another form, or an empty turn.
    """
    new = _check_messages(messages, "messages")
    parts: list[dict[str, Any]] = [
        *({"type": "image", "image": image} for image in image_list(images)),
        *({"type": "video", "video": video} for video in video_list(videos)),
    ]
    if isinstance(text, str):
        parts.append({"type": "text", "text": text})
    elif text is not None:
        if parts:
            raise InvalidInput(
                "images= and videos= need a text instead of a list of messages: put them "
                'into a message, as parts such as {"type": "image", "image": IMAGE}.'
            )
        new += _check_messages(text, "the text")
    if parts:
        new.append({"role": "user", "content": parts})
    if not new:
        raise InvalidInput("the turn is empty: give a text, images, or messages.")
    if system is not None:
        new.insert(0, {"role": "system", "content": check_text(system, "system")})
    return tuple(new)


def check_text(text: Any, name: str) -> str:
    """Return a text; raise InvalidInput for anything else."""
    if not isinstance(text, str):
        raise InvalidInput(f"{name} is {text!r:.80}: give a text.")
    return text


def parts_of(message: Message, name: str = "a message") -> list[dict[str, Any]]:
    """Return a message's parts, of the types "text", "image" and "video".

    Raises:
        InvalidInput: it is no message, or has a part of another type.
    """
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise InvalidInput(
            f"{name}: {message!r:.80} is no message: give a dictionary with 'role' and 'content'."
        )
    content = message.get("content")
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content or ""}]
    parts = [content] if isinstance(content, Mapping) else content
    if not isinstance(parts, Sequence):
        raise InvalidInput(f"{name} has the content {content!r:.80}: give a text or parts.")
    return [_check_part(part, name) for part in parts]


def text_of(message: Message) -> str:
    """Return a message's text, without its images and videos."""
    return "".join(part["text"] for part in parts_of(message) if part["type"] == "text")


def media_of(messages: Sequence[Message]) -> tuple[list[Any], list[Any]]:
    """Return the images and the videos of messages, each in order."""
    parts = [part for message in messages for part in parts_of(message)]
    images = [part for part in parts if part["type"] == "image"]
    return images, [part.get("video") for part in parts if part["type"] == "video"]


def without_history(old: Sequence[Message], new: Sequence[Message]) -> tuple[Message, ...]:
    """Return the new messages of a turn, without the conversation so far at their beginning.

    Args:
        old: the conversation so far; the new messages may leave out its system message.
        new: messages of a turn. If an assistant's is among them, they are a whole conversation.

    Raises:
        InvalidInput: the conversation differs from the one so far, or adds nothing to it.
    """
    if not old or all(message["role"] != "assistant" for message in new):
        return tuple(new)
    if old[0]["role"] == "system" != new[0]["role"]:
        old = old[1:]
    count = len(old)
    differs = next(
        (i for i, pair in enumerate(zip(old, new, strict=False)) if not is_same(*pair)), None
    )
    if differs is not None or len(new) < count:
        at = len(new) if differs is None else differs
        raise InvalidInput(
            f"these messages differ from the {count} messages of this chat, from messages[{at}] "
            "on. Give only those after the latest answer, or the conversation exactly as it was "
            "(chat.messages); for another conversation create a new Chat."
        )
    if len(new) == count:
        raise InvalidInput(
            f"these are the {count} messages of this chat without a new one: add a message, or "
            "call retry() for another answer."
        )
    return tuple(new[count:])


def replace_text(new: tuple[Message, ...], text: str) -> tuple[Message, ...]:
    """Return the messages with another text in the last user's message."""
    last = max((i for i, message in enumerate(new) if message["role"] == "user"), default=None)
    if last is None:
        raise InvalidInput("the latest turn has no user's message to edit.")
    parts = [part for part in parts_of(new[last]) if part["type"] != "text"]
    parts.append({"type": "text", "text": check_text(text, "text")})
    return (*new[:last], {**new[last], "content": parts}, *new[last + 1 :])


def _check_messages(messages: Any, name: str) -> list[Message]:
    if isinstance(messages, Mapping):
        messages = [messages]
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        raise InvalidInput(
            f"{name} is {messages!r:.80}: give a text, or a list of messages such as "
            '{"role": "user", "content": TEXT}.'
        )
    for number, message in enumerate(messages):
        parts_of(message, f"messages[{number}]")
    return list(messages)


def _check_part(part: Any, name: str) -> dict[str, Any]:
    kind = _KINDS.get(str(part.get("type"))) if isinstance(part, Mapping) else None
    if kind is None or (kind == "text" and not isinstance(part.get("text"), str)):
        raise InvalidInput(
            f"{name} has the part {part!r:.80}: parts are text, images and videos, such as "
            '{"type": "text", "text": "..."}.'
        )
    if kind == "image" and part["type"] != "image":  # templates ask for this key
        return {"type": "image", "image": find_source(part)}
    return {**part, "type": kind}


_OF_TOOLS = ("tool_calls", "tool_call_id", "name")


def is_same(old: Message, new: Message) -> bool:
    """Return True if two messages have the same role, text, images, videos and tool calls.

    Spaces around an answer do not count: ``Answer.text`` has none, but the joined pieces of a
    stream may end with some.
    """
    if any((old.get(name) or None) != (new.get(name) or None) for name in _OF_TOOLS):
        return False
    ours, theirs = ([p for p in parts_of(message) if p["type"] != "text"] for message in (old, new))
    return (
        (old["role"], _compared_text(old)) == (new["role"], _compared_text(new))
        and [part["type"] for part in ours] == [part["type"] for part in theirs]
        and all(map(_shows_same, ours, theirs))
    )


def _compared_text(message: Message) -> str:
    text = text_of(message)
    return text.strip() if message["role"] == "assistant" else text


def _shows_same(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return True if two images or two videos are equal.

    In a loaded chat the old pixels are not known, and count as equal.
    """
    if old["type"] == "video":
        first, second = old.get("video"), new.get("video")
        return first is None or np.array_equal(frames_of(first), frames_of(second))
    first, second = find_source(old), find_source(new)
    if first is None or first is second or (isinstance(first, str) and first == second):
        return True
    images = to_image(first), to_image(second, "an earlier image")
    return images[0].size == images[1].size and images[0].tobytes() == images[1].tobytes()
