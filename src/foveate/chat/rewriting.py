"""Chat templates that word earlier turns otherwise once more is said: thinking models drop their
thoughts, some number images when a second one comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from foveate.chat.answering import Answerer
from foveate.chat.reading import Conversation, read
from foveate.errors import InvalidInput
from foveate.prompts.messages import Message
from foveate.prompts.template import Wording, squashed

Rewrites = Literal["keep", "follow", "refuse"]


def is_reworded(wording: Wording, before: Conversation, new: Sequence[Message]) -> bool:
    """Whether the template has other words for what was read, now that ``new`` follows it.

    Spaces and line ends do not count: many templates end a prompt with "ASSISTANT:" and word an
    answer as "ASSISTANT: yes".
    """
    messages = (*before.messages, *new)
    after = wording.around(messages, before.answer)[1]
    return squashed(wording.whole(messages)) != squashed(before.text + after)


def followed(
    answerer: Answerer,
    wording: Wording,
    fork: Conversation,
    before: Conversation,
    new: Sequence[Message],
) -> Conversation:
    """The conversation ``before``, as the template words it now: read anew from ``fork``, a part of
    it, or, where that is worded otherwise as well, from its beginning.

    Raises:
        InvalidInput: it has images without pixels, as after a chat was loaded; or the template
            cannot be followed.
    """
    messages = (*before.messages, *new)
    after = wording.around(messages, before.answer)[1]
    whole = wording.whole(messages)
    if not whole.endswith(after):
        raise InvalidInput(
            "the chat template words new messages otherwise behind this answer, so where it ends "
            'cannot be told. Use rewrites="keep".'
        )
    rendered = whole[: len(whole) - len(after)]
    text = _behind(wording, fork, messages, rendered, after)
    if text is None:
        fork, text = Conversation(), rendered
    said = before.messages[len(fork.messages) :]
    part = read(answerer.model, wording, text, said, begins=not fork.messages)
    done = answerer.read(fork, part)
    return Conversation(before.messages, before.answer, rendered, done.ids, done.types, done.cache)


def _behind(
    wording: Wording, fork: Conversation, messages: Sequence[Message], rendered: str, after: str
) -> str | None:
    """Of all the words so far, those that follow the fork; None where it was told in others."""
    if not fork.messages:
        return None
    rest = wording.around(messages, fork.answer)[1]
    text = rest[: len(rest) - len(after)]
    return text if squashed(fork.text + text) == squashed(rendered) else None
