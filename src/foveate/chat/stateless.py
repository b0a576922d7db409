"""Complete lists of messages, as HTTP clients send them, matched with stored conversations."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from foveate.chat.answering import Conversation
from foveate.chat.generation import check_template_arguments
from foveate.prompts.images import find_source
from foveate.prompts.messages import Message, is_same, parts_of
from foveate.prompts.template import Wording


def longest_beginning(stored: Iterable[Conversation], messages: Sequence[Message]) -> Conversation:
    """Return the longest stored conversation that ``messages`` continue, or an empty one."""
    continued = (state for state in stored if _is_beginning(state.messages, messages))
    return max(continued, key=lambda state: len(state.messages), default=Conversation())


def warn_of_rereading(old: Conversation, messages: Sequence[Message]) -> None:
    """Log that a stored conversation cannot be continued, with the first difference."""
    pairs = enumerate(zip(old.messages, messages, strict=False))
    at = next((index for index, pair in pairs if not _is_known_same(*pair)), None)
    if at is None:
        is_shorter = len(messages) <= len(old.messages)
        reason = "the list ends earlier" if is_shorter else "the tools differ"
    elif "system" in (old.messages[at]["role"], messages[at]["role"]):
        reason = "the system message differs"
    else:
        reason = f"messages[{at}] differs"
    logging.getLogger("foveate").warning(
        "complete() reads all %d messages again instead of continuing %d stored tokens: %s.",
        len(messages),
        old.ids.shape[1],
        reason,
    )


def with_tools(wording: Wording, tools: Sequence[Any] | None) -> Wording | None:
    """Return a wording with other tools; None if they are the same, or ``tools`` is None.

    Raises:
        InvalidParameter: the chat template takes no tools.
    """
    if tools is None or list(tools) == list(wording.template.get("tools") or ()):
        return None
    others = {name: value for name, value in wording.template.items() if name != "tools"}
    arguments = {**others, "tools": list(tools)} if tools else others
    check_template_arguments(arguments, wording.processor)
    return Wording(wording.processor, arguments)


def _is_beginning(old: Sequence[Message], new: Sequence[Message]) -> bool:
    """Return True if ``new`` repeats all of ``old`` and goes on."""
    return len(old) < len(new) and all(map(_is_known_same, old, new))


def _is_known_same(old: Message, new: Message) -> bool:
    """Return True if two messages are the same, and the old one's pixels are known.

    ``is_same`` alone accepts any image in the place of one that was not saved with its chat. Here
    another client's image could be there.
    """
    return is_same(old, new) and all(map(_is_known, parts_of(old)))


def _is_known(part: dict[str, Any]) -> bool:
    if part["type"] == "image":
        return find_source(part) is not None
    return part["type"] != "video" or part.get("video") is not None
