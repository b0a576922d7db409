"""A turn from what is said to the conversation after it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any, NamedTuple

from foveate.chat.answering import Answerer
from foveate.chat.asking import Answer
from foveate.chat.reading import Conversation, NewPart, read
from foveate.chat.rewriting import Rewrites, followed, is_reworded
from foveate.errors import InvalidInput
from foveate.prompts.images import to_image
from foveate.prompts.messages import Message, media_of, without_history
from foveate.prompts.template import Wording
from foveate.prompts.videos import video_inputs

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
        done = self.answerer.answer(before, ready.part, options, stop, streamer)
        said = self.wording.formed({"role": "assistant", "content": done.answer.text})
        messages = (*before.messages, *new, said)
        rendered = ready.text + self.wording.literals.marked(done.answer.text)
        after = Conversation(
            messages, len(messages) - 1, rendered, done.ids, done.types, done.cache
        )
        return done.answer, after

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
