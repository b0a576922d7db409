"""A turn from what is said to the conversation after it. Some chat templates word earlier turns
otherwise once more is said: thinking models drop their thoughts, others number images.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import Any, Literal, NamedTuple

from foveate.chat.answering import Answerer, Conversation, NewPart, read
from foveate.chat.asking import Answer
from foveate.errors import InvalidInput
from foveate.prompts.images import to_image
from foveate.prompts.messages import Message, media_of, without_history
from foveate.prompts.template import Wording, squashed
from foveate.prompts.videos import video_inputs

Rewrites = Literal["keep", "follow", "refuse"]
_REWORDS = (
    "the chat template words earlier turns otherwise than when they were read (thinking models "
    "drop their thoughts, others number images)"
)


class Turn(NamedTuple):
    """The conversation that a turn continues, its new messages, and arguments of ``generate``."""

    before: Conversation
    new: tuple[Message, ...]
    options: Mapping[str, Any]


class Prepared(NamedTuple):
    """A turn that only the model has to read: its tokens and pixels, and the ``text`` of all,
    in the template's words.
    """

    turn: Turn
    part: NewPart
    text: str


class Turns:
    """The turns of one chat; ``warned`` is whether the log has been told of rewriting."""

    def __init__(self, answerer: Answerer, wording: Wording, rewrites: Rewrites):
        self.answerer, self.wording, self.rewrites = answerer, wording, rewrites
        self.warned = False

    def check(self, new: Sequence[Message]) -> None:
        """Refuse images and videos that cannot be read; their pixels are read again in the turn."""
        images, videos = media_of(new)
        for number, image in enumerate(images):
            to_image(image, f"images[{number}]")
        video_inputs(self.wording.processor, videos)

    def needs_model(self, turn: Turn) -> bool:
        """Return whether the model has to read before the turn's own words are known."""
        if self.rewrites != "follow" or not turn.before.messages:
            return False
        return is_reworded(self.wording, turn.before, turn.new)

    def prepared(self, turn: Turn, fork: Conversation) -> Prepared:
        """The turn, worded and read by the processor; ``fork`` is the conversation before the
        latest turn, from where it is read anew if the template is followed.
        """
        self.answerer.check(turn.options)
        turn = turn._replace(new=without_history(turn.before.messages, turn.new))
        before = self._before(turn, fork)
        if begins := not before.messages:
            text = rendered = self.wording.whole(turn.new)
        else:
            text = self.wording.around((*before.messages, *turn.new), before.answer)[1]
            rendered = before.text + text
        answer = None if begins or before is not turn.before else before.answer
        self.wording.check_words(turn.new, text, before.messages, answer)
        part = read(self.answerer.model, self.wording, text, turn.new, begins)
        return Prepared(turn._replace(before=before), part, rendered)

    def answered(
        self, ready: Prepared, stop: Event, streamer: Any = None
    ) -> tuple[Answer, Conversation]:
        """The answer, and the conversation after it."""
        before, new, options = ready.turn
        answer, after = self.answerer.answer(before, ready.part, options, stop, streamer)
        said = self.wording.formed({"role": "assistant", "content": answer.text})
        messages = (*before.messages, *new, said)
        text = ready.text + self.wording.literals.marked(answer.text)
        return answer, replace(after, messages=messages, answer=len(messages) - 1, text=text)

    def _before(self, turn: Turn, fork: Conversation) -> Conversation:
        """What the turn goes on from, where the template words that otherwise now."""
        if not turn.before.messages or not is_reworded(self.wording, turn.before, turn.new):
            return turn.before
        if self.rewrites == "refuse":
            raise InvalidInput(f'{_REWORDS}. Use rewrites="keep" or "follow".')
        if not self.warned:
            does = "is kept" if self.rewrites == "keep" else "is read anew"
            logging.getLogger("foveate").warning("%s; what was read %s.", _REWORDS, does)
            self.warned = True
        if self.rewrites == "keep":
            return turn.before
        return followed(self.answerer, self.wording, fork, turn.before, turn.new)


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
    _, reread = answerer.read(fork, part)
    return replace(reread, messages=before.messages, answer=before.answer, text=rendered)


def _behind(
    wording: Wording, fork: Conversation, messages: Sequence[Message], rendered: str, after: str
) -> str | None:
    """Of all the words so far, those that follow the fork; None where it was told in others."""
    if not fork.messages:
        return None
    rest = wording.around(messages, fork.answer)[1]
    text = rest[: len(rest) - len(after)]
    return text if squashed(fork.text + text) == squashed(rendered) else None
