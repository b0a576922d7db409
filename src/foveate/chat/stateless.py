"""Complete lists of messages, as HTTP clients send them, matched with stored conversations."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from foveate.chat.answering import Conversation
from foveate.chat.generation import check_template_arguments
from foveate.chat.history import before_turn, is_stored
from foveate.hf.layer.support import foveate_layers
from foveate.prompts.images import find_source
from foveate.prompts.messages import Message, is_same, parts_of
from foveate.prompts.template import Wording


def reused_turns(now: Conversation, messages: Sequence[Message]) -> int:
    """Return the largest number of first turns that ``messages`` repeat, and whose state after the
    last one is stored.
    """
    pairs = enumerate(zip(now.messages, messages, strict=False))
    shared = next((index for index, pair in pairs if not _is_known_same(*pair)), len(now.messages))
    shared = min(shared, len(messages) - 1)  # at least one message is new
    if now.messages and shared == len(now.messages):
        return len(now.turns)
    turns = range(len(now.turns) - 1, 0, -1)
    return next((t for t in turns if now.turns[t].first <= shared and is_stored(now, t)), 0)


def state_after(now: Conversation, count: int) -> Conversation:
    """Return the conversation after its first ``count`` turns, whose state is stored."""
    return (now if count == len(now.turns) else before_turn(now, count)) or Conversation()


def reusable_tokens(now: Conversation, count: int) -> int:
    """Return the number of tokens that were read in the first ``count`` turns.

    An answer's last token was generated and not read.
    """
    state = now if count == len(now.turns) else now.turns[count].before
    if not count or state is None or state.cache is None:
        return 0
    return foveate_layers(state.cache)[0].seen


def warn_of_rereading(old: Conversation, messages: Sequence[Message], tools: bool) -> None:
    """Log that a stored conversation cannot be continued, with the first difference.

    ``tools`` is True if the tools differ.
    """
    pairs = enumerate(zip(old.messages, messages, strict=False))
    at = next((index for index, pair in pairs if not _is_known_same(*pair)), None)
    if tools:
        reason = "the tools differ"
    elif at is None:
        reason = "the list ends earlier"
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
