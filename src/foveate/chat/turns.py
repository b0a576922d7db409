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

import torch
from PIL import Image
from transformers import LogitsProcessorList

from foveate.chat.answering import Answerer, Conversation, NewPart, TurnRecord, read
from foveate.chat.generation import GREEDY, Answer
from foveate.chat.history import (
    ForcedTokens,
    before_turn,
    check_pixels,
    has_pixels,
    new_of,
    next_position,
    without_state,
)
from foveate.chat.storage import tokens_of
from foveate.errors import InvalidInput
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.modality import visual_token_ids
from foveate.prompts.images import to_image
from foveate.prompts.messages import Message, media_of, text_of, without_history
from foveate.prompts.template import Wording, squashed
from foveate.prompts.videos import video_inputs

Rewrites = Literal["keep", "follow", "refuse"]
_REWORDS = (
    "the chat template now renders earlier turns differently than when they were read (thinking "
    "models drop their thoughts, others number images)"
)

_EFFECTS = {
    "keep": 'they stay as they were read (rewrites="follow" reads them again)',
    "follow": "they are read again",
}
_ADVICE = {
    "true": 'Begin a new Chat, with positions="reindexed" if it shall last',
    "reindexed": "Begin a new Chat with a smaller budget",
}


class Turn(NamedTuple):
    """Conversation that a turn continues, its new messages, and arguments of ``generate``.

    If ``back`` is set, ``before`` is first taken back to the state before that turn. ``wording``
    replaces the chat's own from this turn on: ``complete`` was called with other tools. ``decoded``
    are the images of ``new``, if they were decoded already.
    """

    before: Conversation
    new: tuple[Message, ...]
    options: Mapping[str, Any]
    back: int | None = None
    wording: Wording | None = None
    decoded: Sequence[Image.Image] = ()


class Prepared(NamedTuple):
    """Turn that is ready for the model; ``text`` is the conversation as the template renders it.

    With ``afresh``, the part has the complete conversation, and no stored pairs are continued.
    """

    turn: Turn
    part: NewPart
    text: str
    afresh: bool = False

    @property
    def start(self) -> Conversation:
        """Conversation whose cache the part continues."""
        return Conversation() if self.afresh else self.turn.before


class Turns:
    """Turns of one chat; ``warned`` is True once the log has a warning about rewriting.

    Conversations of at most ``reread`` tokens are read again once pairs were evicted.
    """

    def __init__(self, answerer: Answerer, wording: Wording, rewrites: Rewrites, reread: int = 0):
        self.answerer, self.wording, self.rewrites = answerer, wording, rewrites
        self.reread = reread
        self.warned = self._warned_of_range = self._warned_of_pixels = False

    def check(self, new: Sequence[Message]) -> list[Image.Image]:
        """Refuse images and videos that cannot be read; return the images, for ``Turn.decoded``."""
        images, videos = media_of(new)
        video_inputs(self.wording.processor, videos)
        return [to_image(image, f"images[{number}]") for number, image in enumerate(images)]

    def needs_model(self, turn: Turn) -> bool:
        """Return True if the model must read again before the turn's text is known."""
        if turn.back is not None:
            return True
        if self.rewrites != "follow" or not turn.before.messages:
            return False
        return is_reworded(self.wording, turn.before, turn.new)

    def prepared(self, turn: Turn, fork: Conversation) -> Prepared:
        """Render and tokenize a turn.

        ``fork`` is the conversation before the latest turn; with rewrites="follow", the latest turn
        is read again from there.
        """
        self.answerer.check(turn.options)
        if turn.back is not None:
            turn = turn._replace(before=self.taken_back(turn.before, turn.back), back=None)
        turn = turn._replace(new=without_history(turn.before.messages, turn.new))
        is_earlier = len(fork.messages) < len(turn.before.messages)
        before = self._continued(turn, fork if is_earlier else Conversation())
        wording = turn.wording or self.wording
        if begins := not before.messages:
            text = rendered = wording.render(turn.new)
        else:
            text = wording.around((*before.messages, *turn.new), before.answer)[1]
            rendered = before.text + text
        answer = None if begins or before is not turn.before else before.answer
        wording.check_words(turn.new, text, before.messages, answer)
        part = read(self.answerer.model, wording, text, turn.new, begins, turn.decoded)
        turn = turn._replace(before=before)
        if self._rereads(before):
            return Prepared(turn, self._complete(turn, part, wording), rendered, afresh=True)
        return Prepared(turn, part, rendered)

    def _rereads(self, before: Conversation) -> bool:
        """Return True if the conversation is read again, because pairs of it were evicted."""
        if before.cache is None or before.ids.shape[1] > self.reread:
            return False
        layers = foveate_layers(before.cache)
        if tokens_of(layers) >= layers[0].seen:
            return False
        if has_pixels(before.messages):
            return True
        if not self._warned_of_pixels:
            self._warned_of_pixels = True
            logging.getLogger("foveate").warning(
                "this chat was loaded and has no pixels of its earlier images, so reread=%d has no "
                "effect: its stored pairs are compressed again. Logged once per chat.",
                self.reread,
            )
        return False

    def _complete(self, turn: Turn, part: NewPart, wording: Wording) -> NewPart:
        """Return the complete conversation as one part, with the tokens as they were read.

        LLaVA-OneVision gives an image other tokens beside others: then they are those of one
        prompt.
        """
        ids, types = turn.before.with_ids(part.ids, part.types)
        messages = (*turn.before.messages, *turn.new)
        if not any(media_of(messages)):
            return NewPart({"input_ids": ids, **types}, 0)
        model = self.answerer.model
        prompt = read(model, wording, wording.render(messages), messages, begins=True)
        visual = ids.new_tensor(visual_token_ids(model.config))
        counts = [int(torch.isin(tokens, visual).sum()) for tokens in (ids, prompt.ids)]
        if counts[0] != counts[1]:
            return prompt
        return NewPart({"input_ids": ids, **types, **prompt.media}, 0)

    def answered(
        self, ready: Prepared, stop: Event, streamer: Any = None
    ) -> tuple[Answer, Conversation]:
        """Generate the answer; return it and the conversation after it."""
        options = ready.turn.options
        answer, after = self.answerer.answer(ready.start, ready.part, options, stop, streamer)
        return answer, self._ended(ready, answer, after)

    def _ended(self, ready: Prepared, answer: Answer, after: Conversation) -> Conversation:
        """Return the conversation after an answer, with its messages, text and records."""
        before, new, options = ready.turn[:3]
        reply = self.wording.formed({"role": "assistant", "content": answer.text})
        messages = (*before.messages, *new, reply)
        text = ready.text + self.wording.literals.marked(answer.text)
        first, start, turns = len(before.messages), before.ids.shape[1], before.turns
        earlier = ready.part.ids[:, :start]
        if ready.afresh and not torch.equal(earlier, before.ids.to(earlier.device)):
            start, turns = 0, tuple(map(without_state, turns))
        record = TurnRecord(first, start, options, answer.ids, answer.ended, answer.usage)
        record = record._replace(before=replace(before, turns=()) if first else None)
        return replace(
            after,
            messages=messages,
            answer=len(messages) - 1,
            text=text,
            turns=(*turns, record),
        )

    def check_positions(self, now: Conversation) -> None:
        """Warn once if positions exceed the range that the model was trained for."""
        positions = self.answerer.positions
        if self._warned_of_range or positions is None or positions.trained is None:
            return
        if (following := next_position(now)) <= positions.trained:
            return
        self._warned_of_range = True
        logging.getLogger("foveate").warning(
            "this chat's next position is %d, and its model knows %d positions: answers may become "
            "worse, also after evictions. %s, or undo turns. Logged once per chat.",
            following,
            positions.trained,
            _ADVICE[positions.positions],
        )

    def taken_back(self, now: Conversation, turn: int) -> Conversation:
        """Return the conversation before a turn; it is read again if that state is lost.

        Raises:
            InvalidInput: images have no pixels, as in a loaded chat; or the turns are unknown.
        """
        if (before := before_turn(now, turn)) is not None:
            return before
        if now.turns[0].first:
            raise InvalidInput(
                "this chat was loaded from a file of an earlier version, which does not record "
                "where turns begin, so it cannot go back to them."
            )
        check_pixels(now.messages[: now.turns[turn].first])
        logging.getLogger("foveate").warning(
            "the %d tokens before turn %d are read again, because the cache before that turn is no "
            "longer stored. A larger keep_turns stores the caches before more turns.",
            now.turns[turn].start or now.turns[-1].start,
            turn,
        )
        before = fork = Conversation()
        for number, record in enumerate(now.turns[:turn]):
            new = new_of(now, number)
            ready = self.prepared(Turn(before, new, record.options), fork)
            fork = ready.turn.before
            before = self._repeated(ready, record, text_of(now.messages[record.first + len(new)]))
        return before

    def _repeated(self, ready: Prepared, record: TurnRecord, text: str) -> Conversation:
        """Read a turn again, and generate the tokens of its answer one by one, so that the policy
        decides as it did the first time.
        """
        count = len(record.ids) + (record.ended == "eos")  # the last token generated is not fed
        forced = LogitsProcessorList([ForcedTokens(record.ids)])
        options = {**GREEDY, "max_new_tokens": count, "logits_processor": forced}
        start, part = ready.start, ready.part
        answer, after = self.answerer.answer(start, part, options, Event())
        length = start.ids.shape[1] + part.ids.shape[1] + len(record.ids)
        types = {name: row[:, :length] for name, row in after.types.items()}
        after = replace(after, ids=after.ids[:, :length], types=types)
        reply = answer._replace(text=text, ids=record.ids, ended=record.ended, usage=record.usage)
        return self._ended(ready, reply, after)

    def _continued(self, turn: Turn, fork: Conversation) -> Conversation:
        """Return the conversation that the turn continues, read again if that is to follow."""
        if not turn.before.messages or not is_reworded(self.wording, turn.before, turn.new):
            return turn.before
        if self.rewrites == "refuse":
            raise InvalidInput(f'{_REWORDS}. Use rewrites="keep" or "follow".')
        if not self.warned:
            logging.getLogger("foveate").warning("%s; %s.", _REWORDS, _EFFECTS[self.rewrites])
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
    turns = before.turns if fork.messages else tuple(map(without_state, before.turns))
    return replace(
        reread, messages=before.messages, answer=before.answer, text=rendered, turns=turns
    )


def _text_after_fork(
    wording: Wording, fork: Conversation, messages: Sequence[Message], rendered: str, after: str
) -> str | None:
    """Return the text after the fork; None if the fork itself is rendered differently."""
    if not fork.messages:
        return None
    rest = wording.around(messages, fork.answer)[1]
    text = rest[: len(rest) - len(after)]
    return text if squashed(fork.text + text) == squashed(rendered) else None
