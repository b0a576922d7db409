"""Turns of a chat, from new messages to the conversation after the answer.

Some chat templates render earlier turns differently once more messages follow: thinking models
drop their thoughts, others number images.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import Any, Literal, NamedTuple

from foveate.chat.answering import Answerer, Conversation, NewPart, read
from foveate.chat.generation import Answer
from foveate.errors import InvalidInput
from foveate.prompts.images import to_image
from foveate.prompts.messages import Message, media_of, without_history
from foveate.prompts.template import Wording, squashed
from foveate.prompts.videos import video_inputs

Rewrites = Literal["keep", "follow", "refuse"]
_REWORDS = (
    "the chat template now renders earlier turns differently than when they were read (thinking "
    "models drop their thoughts, others number images)"
)


class Turn(NamedTuple):
    """Conversation that a turn continues, its new messages, and arguments of ``generate``.

    ``wording`` replaces the chat's own from this turn on: ``complete`` was called with other tools.
    """

    before: Conversation
    new: tuple[Message, ...]
    options: Mapping[str, Any]
    wording: Wording | None = None


class Prepared(NamedTuple):
    """Turn that is ready for the model; ``text`` is the conversation as the template renders it."""

    turn: Turn
    part: NewPart
    text: str


class Turns:
    """Turns of one chat; ``warned`` is True once the log has a warning about rewriting."""

    def __init__(self, answerer: Answerer, wording: Wording, rewrites: Rewrites):
        self.answerer, self.wording, self.rewrites = answerer, wording, rewrites
        self.warned = False

    def check(self, new: Sequence[Message]) -> None:
        """Refuse images and videos that cannot be read; the turn itself reads them again."""
        images, videos = media_of(new)
        for number, image in enumerate(images):
            to_image(image, f"images[{number}]")
        video_inputs(self.wording.processor, videos)

    def needs_model(self, turn: Turn) -> bool:
        """Return True if the model must read again before the turn's text is known."""
        if self.rewrites != "follow" or not turn.before.messages:
            return False
        return is_reworded(self.wording, turn.before, turn.new)

    def prepared(self, turn: Turn, fork: Conversation) -> Prepared:
        """Render and tokenize a turn.

        ``fork`` is the conversation before the latest turn; with rewrites="follow", the latest turn
        is read again from there.
        """
        self.answerer.check(turn.options)
        turn = turn._replace(new=without_history(turn.before.messages, turn.new))
        before, wording = self._continued(turn, fork), turn.wording or self.wording
        if begins := not before.messages:
            text = rendered = wording.render(turn.new)
        else:
            text = wording.around((*before.messages, *turn.new), before.answer)[1]
            rendered = before.text + text
        answer = None if begins or before is not turn.before else before.answer
        wording.check_words(turn.new, text, before.messages, answer)
        part = read(self.answerer.model, wording, text, turn.new, begins)
        return Prepared(turn._replace(before=before), part, rendered)

    def answered(
        self, ready: Prepared, stop: Event, streamer: Any = None
    ) -> tuple[Answer, Conversation]:
        """Generate the answer; return it and the conversation after it."""
        before, new, options = ready.turn[:3]
        answer, after = self.answerer.answer(before, ready.part, options, stop, streamer)
        reply = self.wording.formed({"role": "assistant", "content": answer.text})
        messages = (*before.messages, *new, reply)
        text = ready.text + self.wording.literals.marked(answer.text)
        return answer, replace(after, messages=messages, answer=len(messages) - 1, text=text)

    def _continued(self, turn: Turn, fork: Conversation) -> Conversation:
        """Return the conversation that the turn continues, read again if that is to follow."""
        if not turn.before.messages or not is_reworded(self.wording, turn.before, turn.new):
            return turn.before
        if self.rewrites == "refuse":
            raise InvalidInput(f'{_REWORDS}. Use rewrites="keep" or "follow".')
        if not self.warned:
            effect = "stay as they were read" if self.rewrites == "keep" else "are read again"
            logging.getLogger("foveate").warning("%s; they %s.", _REWORDS, effect)
            self.warned = True
        if self.rewrites == "keep":
            return turn.before
        return follow_template(self.answerer, self.wording, fork, turn.before, turn.new)


def is_reworded(wording: Wording, before: Conversation, new: Sequence[Message]) -> bool:
    """Return True if the template renders ``before`` differently now that ``new`` follows.

    White space does not count: many templates end a prompt with "ASSISTANT:" and render an answer
    as "ASSISTANT: yes".
    """
    messages = (*before.messages, *new)
    after = wording.around(messages, before.answer)[1]
    return squashed(wording.render(messages)) != squashed(before.text + after)


def follow_template(
    answerer: Answerer,
    wording: Wording,
    fork: Conversation,
    before: Conversation,
    new: Sequence[Message],
) -> Conversation:
    """Read the conversation ``before`` again, as the template renders it now.

    It is read from ``fork``, an earlier state of it, or from its beginning if the template renders
    the fork differently, too.

    Raises:
        InvalidInput: images have no pixels, as in a loaded chat; or the end of the conversation
            cannot be found in the template's text.
    """
    messages = (*before.messages, *new)
    after = wording.around(messages, before.answer)[1]
    complete = wording.render(messages)
    if not complete.endswith(after):
        raise InvalidInput(
            "the chat template renders new messages differently after this answer, so the answer's "
            'end cannot be found. Use rewrites="keep".'
        )
    rendered = complete[: len(complete) - len(after)]
    text = _text_after_fork(wording, fork, messages, rendered, after)
    if text is None:
        fork, text = Conversation(), rendered
    unread = before.messages[len(fork.messages) :]
    part = read(answerer.model, wording, text, unread, begins=not fork.messages)
    _, reread = answerer.read(fork, part)
    return replace(reread, messages=before.messages, answer=before.answer, text=rendered)


def _text_after_fork(
    wording: Wording, fork: Conversation, messages: Sequence[Message], rendered: str, after: str
) -> str | None:
    """Return the text after the fork; None if the fork itself is rendered differently."""
    if not fork.messages:
        return None
    rest = wording.around(messages, fork.answer)[1]
    text = rest[: len(rest) - len(after)]
    return text if squashed(fork.text + text) == squashed(rendered) else None
