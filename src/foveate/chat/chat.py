"""``foveate.Chat``: a conversation in one compressed cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Literal, NoReturn, overload

from PIL import Image
from torch import nn

from foveate.chat import persistence
from foveate.chat.answering import Answerer, Conversation
from foveate.chat.event_loop import AsyncAnswerStream
from foveate.chat.generation import Answer, check_template_arguments, with_defaults
from foveate.chat.history import before_turn, by_turn, new_of, pruned
from foveate.chat.picture import draw_turn
from foveate.chat.positions import PositionRange, Positions
from foveate.chat.stateless import (
    reusable_tokens,
    reused_turns,
    state_after,
    warn_of_rereading,
    with_tools,
)
from foveate.chat.storage import ChatHeld, measure_storage
from foveate.chat.streaming import AnswerStream
from foveate.chat.turns import Prepared, Rewrites, Turn, Turns
from foveate.chat.usage import Usage
from foveate.compression.composition import BY_DEFAULT
from foveate.compression.composition import policy as policy_of
from foveate.errors import InvalidInput, InvalidParameter
from foveate.hf.attach.model_queue import QueuePlace, enter
from foveate.policies.policy import Policy
from foveate.prompts.messages import Message, new_messages, replace_text
from foveate.prompts.special_tokens import tokenizer_of
from foveate.prompts.template import Wording

Text = str | Sequence[Message] | None
"""Input of a turn: a text, or messages."""
_REWRITES = ("keep", "follow", "refuse")
_OWN = ("policy", "rewrites", "system", "keep_turns", "positions", "template_kwargs")
_OF_COMPLETE = ("messages", "tools", "stream")
_OF_SAY = ("text", "images", "videos", "system", "messages", "stream")


class Chat(AbstractContextManager["Chat"]):
    """Conversation with a model in one compressed cache.

    Each turn reads its new text and images only, and compresses them together with the stored
    pairs; the model is in a :func:`foveate.compress` context during a turn. Under a budget in
    tokens, the cache exceeds it by the latest answer at most. Under one in bytes, it does not
    exceed it between turns, unless the latest answer alone needs more. Under a share it grows with
    the conversation (``held``). A turn that an exception or interrupt ends is undone. Chats,
    pipelines and streams that share a model, also under a PEFT wrapper and from several threads,
    take turns in the order of their calls.

    Args:
        model: a model that :func:`foveate.compress` takes.
        processor: its processor, or the tokenizer of a text-only model, with a chat template.
        policy: a policy or its spec.
        rewrites: behaviour if the chat template now renders earlier turns differently: "keep" the
            cache (with one warning in the log "foveate"), "follow" the template by reading the turn
            before again, or "refuse" with InvalidInput.
        system: the system message of the first turn, unless that turn has its own.
        keep_turns: number of latest turns before each of which the cache is stored, for ``undo``,
            ``retry`` and ``edit`` (``held.before`` bytes). Going back further crops the cache if
            nothing was evicted, and otherwise reads the conversation again.
        positions: "true": positions grow with the conversation, also beyond the range that the
            model was trained for (with one warning in the log "foveate"). "reindexed": before a
            turn that would leave that range, gaps of evicted tokens are closed, and stored keys are
            rotated accordingly.
        template_kwargs: arguments of ``apply_chat_template``, e.g. ``{"enable_thinking": False}``.
        **generate: arguments of ``model.generate`` for every answer, such as
            ``max_new_tokens=64``; a call's own arguments override them.

    Raises:
        InvalidInput: the chat template is missing, or cannot render plain messages; an argument of
            ``generate`` that a chat sets itself.
        InvalidParameter: an unknown argument, template argument, ``rewrites`` or ``positions``, a
            negative ``keep_turns``, or reindexed positions with keys that are not stored in full
            precision.
        UnsupportedModel: reindexed positions of a model with sliding windows; and at the first
            turn, of one that rotates keys in an unknown way.
        FoveateError: as :func:`foveate.compress` raises.
    """

    def __init__(
        self,
        model: nn.Module,
        processor: Any,
        policy: Policy | str = BY_DEFAULT,
        *,
        rewrites: Rewrites = "keep",
        system: str | None = None,
        keep_turns: int = 1,
        positions: Positions = "true",
        template_kwargs: Mapping[str, Any] | None = None,
        **generate: Any,
    ):
        if rewrites not in _REWRITES:
            raise InvalidParameter(
                f"rewrites={rewrites!r} is unknown: give one of {', '.join(map(repr, _REWRITES))}."
            )
        if not isinstance(keep_turns, int) or keep_turns < 0:
            raise InvalidParameter(
                f"keep_turns={keep_turns!r}: give a number of turns, such as 1, or 0 for none."
            )
        answerer = Answerer(model, processor, policy_of(policy))  # type: ignore[arg-type]
        session = answerer.new_session()  # raises if the model cannot be compressed
        position_range = PositionRange(session.model, processor, session.policy, positions)
        answerer = answerer._replace(positions=position_range)
        self._positions = positions
        answerer.check(generate, "Chat(...)", _OWN, complete=False)
        check_template_arguments(template_kwargs or {}, processor)
        wording = Wording(processor, template_kwargs or {})
        self._turns = Turns(answerer, wording, rewrites)
        self._system, self._keep_turns, self._defaults = system, keep_turns, dict(generate)
        self._now = Conversation()
        self._stops: list[Event] = []  # one for each turn that runs or waits
        self._closed = False

    def __repr__(self) -> str:
        turns = len(self._now.turns)
        return f"Chat({self.policy.spec}: {turns} turns, {self._now.ids.shape[1]} tokens)"

    # Turns

    @overload
    def say(self, text: Text = None, *, stream: Literal[False] = False, **more: Any) -> Answer: ...
    @overload
    def say(self, text: Text = None, *, stream: Literal[True], **more: Any) -> AnswerStream: ...
    def say(
        self,
        text: Text = None,
        *,
        images: Any = (),
        videos: Any = (),
        system: str | None = None,
        messages: Sequence[Message] = (),
        stream: bool = False,
        **generate: Any,
    ) -> Answer | AnswerStream:
        """Add a user's turn, and return the model's answer.

        Args:
            text: the user's text, or a list of messages. Special tokens in it are read as text.
                Messages may repeat the conversation so far; only the rest is read.
            images: images in front of the text, or a single one. Each is a PIL image, a path,
                ``file://`` or http(s) address, base64, a file's bytes, a mapping such as
                ``{"bytes": ..., "path": ...}``, or an array or tensor [height, width, channels] or
                [channels, height, width] of 1, 3 or 4 channels, uint8 or floats in [0, 1].
            videos: videos after the images, or a single one: a :class:`foveate.Clip` (from
                :func:`foveate.read_video`), whose times are passed to the processor, an array or
                tensor of frames [n, height, width, 3], or a list of images. All frames are read.
            system: a system message in front of this turn; it overrides the chat's own.
            messages: messages in the processor's or OpenAI's form, in front of ``text``: a history
                to begin with, tools' answers, texts between images.
            stream: return an iterable of pieces of the answer's text at once, also while the model
                answers another chat.
            **generate: arguments of ``model.generate``; ``max_new_tokens`` defaults to 256.

        Raises:
            InvalidInput: the turn is empty; its history differs from the conversation so far; an
                image cannot be read, or the model takes none; the template drops a message; beams
                or several sequences; or an error of the processor or template.
            InvalidParameter: an argument that neither ``say`` nor ``generate`` takes.
            AlreadyCompressing: called from a callback of an answer of the same model; or the model
                is in a :func:`foveate.compress` context.
        """
        options = self._check_options(generate, "say(...)", _OF_SAY)
        added = new_messages(text, images, videos, system, messages)
        new = tuple(map(self._turns.wording.formed, added))
        return self._run_turn(lambda: Turn(self._now, self._with_system(new), options), new, stream)

    @overload
    def complete(
        self, messages: Sequence[Message], *, stream: Literal[False] = False, **more: Any
    ) -> Answer: ...
    @overload
    def complete(
        self, messages: Sequence[Message], *, stream: Literal[True], **more: Any
    ) -> AnswerStream: ...
    def complete(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        stream: bool = False,
        **generate: Any,
    ) -> Answer | AnswerStream:
        """Answer a complete list of messages, as clients of OpenAI's API send it.

        Only the messages after the longest stored beginning are read. The states before the latest
        ``keep_turns`` turns are stored, and those before all turns while nothing was evicted. A
        list with another beginning replaces the conversation: all of it is read, and the log
        ("foveate") warns why. Images are equal if their decoded pixels are; those of a loaded chat
        are unknown and are read again.

        Args:
            messages: the complete list, in the processor's or OpenAI's form.
            tools: tools for the chat template, [] for none; None keeps those of the latest call.
                Other tools than before need all messages to be read again.
            stream: as in ``say``.
            **generate: arguments of ``model.generate``; ``max_new_tokens`` defaults to 256.

        Raises:
            FoveateError: as ``say`` raises.
        """
        options = self._check_options(generate, "complete(...)", _OF_COMPLETE)
        complete = self._complete_list(messages)

        def turn() -> Turn:
            wording = with_tools(self._turns.wording, tools)
            count = reused_turns(self._now, complete) if wording is None else 0
            if self._now.messages and not count:
                warn_of_rereading(self._now, complete, wording is not None)
            return Turn(state_after(self._now, count), complete, options, wording=wording)

        return self._run_turn(turn, complete, stream)

    def reusable_tokens(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None
    ) -> int:
        """Return the number of stored tokens that ``complete`` would not read again."""
        is_changed = with_tools(self._turns.wording, tools) is not None
        now, complete = self._now, self._complete_list(messages)
        return 0 if is_changed else reusable_tokens(now, reused_turns(now, complete))

    async def asay(self, text: Text = None, **more: Any) -> Answer:
        """Answer as ``say`` does, in a worker thread; cancelling stops the answer as ``stop()``."""
        return await self.astream(text, **more)

    def astream(self, text: Text = None, **more: Any) -> AsyncAnswerStream:
        """Return the pieces of an answer's text as an async iterator; awaited, it is the answer.

        Arguments are those of ``say``. A worker thread reads and answers. Leaving the loop early or
        cancelling the task stops the answer as ``stop()`` does.
        """
        return AsyncAnswerStream(lambda: self.say(text, stream=True, **more))

    @overload
    def retry(self, *, stream: Literal[False] = False, **generate: Any) -> Answer: ...
    @overload
    def retry(self, *, stream: Literal[True], **generate: Any) -> AnswerStream: ...
    def retry(self, *, stream: bool = False, **generate: Any) -> Answer | AnswerStream:
        """Answer the latest turn again, from the state before it.

        ``generate`` overrides that turn's arguments. If that state is not stored any more, the
        conversation is read again, and the log "foveate" warns.

        Raises:
            InvalidInput: there is no turn yet, or it needs images of a loaded chat, which have no
                pixels.
        """
        return self._repeat_turn(None, -1, stream, generate, "retry(...)")

    @overload
    def edit(
        self, text: str, *, turn: int = -1, stream: Literal[False] = False, **generate: Any
    ) -> Answer: ...
    @overload
    def edit(
        self, text: str, *, turn: int = -1, stream: Literal[True], **generate: Any
    ) -> AnswerStream: ...
    def edit(
        self, text: str, *, turn: int = -1, stream: bool = False, **generate: Any
    ) -> Answer | AnswerStream:
        """Replace the user's text of a turn by ``text``, with the same images, and answer it.

        Later turns are undone. Turns count from 0; -1 is the latest.

        Raises:
            InvalidInput: there is no such turn, or as ``retry`` raises.
        """
        return self._repeat_turn(text, turn, stream, generate, "edit(...)")

    def undo(self, turns: int = 1) -> None:
        """Take back the latest turns, so that the chat is in the state before them.

        If that state is not stored any more, the conversation is read again, and the log "foveate"
        warns. An answer that this chat is generating ends first.

        Raises:
            InvalidInput: there are fewer turns, or as ``retry`` raises.
        """
        if turns < 1:
            raise InvalidInput(f"turns={turns!r}: give a number of turns from 1 on.")
        with enter(self._turns.answerer.model, sys._getframe()):
            self._check_open()
            self._now = self._turns.taken_back(self._now, self._turn_index(-turns))

    def stop(self) -> None:
        """End the running answer, from another thread or a signal handler.

        The text so far is kept, and the chat goes on. Turns of this chat that still wait for the
        model are read when it is free, and end after one token.
        """
        for stop in tuple(self._stops):
            stop.set()

    def _repeat_turn(
        self, text: str | None, turn: int, stream: bool, generate: Mapping[str, Any], call: str
    ) -> Answer | AnswerStream:
        self._check_options(generate, call, ("text", "turn", "stream"))

        def repeated() -> Turn:
            now, index = self._now, self._turn_index(turn)
            record, new = now.turns[index], new_of(now, index)
            new = new if text is None else replace_text(new, text)
            options = with_defaults(record.options, generate)
            if (before := before_turn(now, index)) is None:
                return Turn(now, new, options, back=index)
            return Turn(before, new, options)

        return self._run_turn(repeated, (), stream)

    def _turn_index(self, turn: int) -> int:
        """Return the index of a turn from 0 on; negative numbers count from the end."""
        count = len(self._now.turns)
        if not count:
            raise InvalidInput("there is no turn to answer again or to undo: call say() first.")
        if not -count <= turn < count:
            raise InvalidInput(
                f"there is no turn {turn} to go back to: this chat has {count} turn(s)."
            )
        return turn % count

    def _check_options(
        self, generate: Mapping[str, Any], call: str, own: Sequence[str]
    ) -> dict[str, Any]:
        """Return a call's arguments over the chat's own; refuse those that a chat cannot take."""
        options = with_defaults(self._defaults, generate)
        self._turns.answerer.check(options, call, own)
        return options

    def _with_system(self, new: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return a turn's messages, with the chat's system message in front of the first turn."""
        if self._system is None or any(m["role"] == "system" for m in (*self._now.messages, *new)):
            return new
        system = {"role": "system", "content": self._system}
        return new if self._now.messages else (self._turns.wording.formed(system), *new)

    def _complete_list(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return a complete list in the template's form, with the chat's system message."""
        complete = tuple(map(self._turns.wording.formed, new_messages(None, messages=messages)))
        if complete[-1]["role"] == "assistant":
            raise InvalidInput("the list ends with an answer: add the message to answer.")
        if self._system is None or any(message["role"] == "system" for message in complete):
            return complete
        return self._turns.wording.formed({"role": "system", "content": self._system}), *complete

    def _run_turn(
        self, turn: Callable[[], Turn], new: Sequence[Message], stream: bool
    ) -> Answer | AnswerStream:
        """Run a turn; ``new`` are the messages that are known at the call."""
        self._check_open()
        stop = Event()
        with ExitStack() as undo:
            undo.callback(self._stops.remove, stop)
            self._stops.append(stop)
            queue_place = enter(self._turns.answerer.model, sys._getframe())
            undo.callback(queue_place.leave)
            ready, decoded = self._prepare_at_call(turn, new)
            answered = partial(self._answer_turn, queue_place, turn, ready, decoded, stop)
            if not stream:
                return answered()
            return self._stream_answer(answered, undo, stop, queue_place)

    def _stream_answer(
        self, answered: Callable[..., Answer], undo: ExitStack, stop: Event, queue_place: QueuePlace
    ) -> AnswerStream:
        """Answer in a new thread, which runs ``undo`` at its end."""
        undo_there = undo.pop_all()

        def answer(streamer: Any) -> Answer:
            with undo_there:
                return answered(streamer)

        try:
            tokenizer = tokenizer_of(self._turns.answerer.processor)
            return AnswerStream(tokenizer, answer, stop, queue_place)
        except Exception:  # no thread
            undo_there.close()
            raise

    def _prepare_at_call(
        self, turn: Callable[[], Turn], new: Sequence[Message]
    ) -> tuple[Prepared | None, list[Image.Image]]:
        """Prepare a turn without the model, so that errors are raised at the call.

        If an earlier turn of this chat must end first, or the model must read, only the images of
        ``new`` are decoded.
        """
        planned = turn() if len(self._stops) == 1 else None
        if planned is None or self._turns.needs_model(planned):
            return None, self._turns.check(new)
        return self._turns.prepared(planned, self._fork_point()), []

    def _answer_turn(
        self,
        queue_place: QueuePlace,
        turn: Callable[[], Turn],
        ready: Prepared | None,
        decoded: Sequence[Image.Image],
        stop: Event,
        streamer: Any = None,
    ) -> Answer:
        """Answer the turn once the model is free."""
        with queue_place:
            self._check_open()
            if ready is None:
                planned = turn()._replace(decoded=decoded)
                ready = self._turns.prepared(planned, self._fork_point())
            answer, after = self._turns.answered(ready, stop, streamer)
            if not self._closed:
                self._now = pruned(after, self._keep_turns)
                self._turns.wording = ready.turn.wording or self._turns.wording
                self._turns.check_positions(after)
        return answer

    def _fork_point(self) -> Conversation:
        """Return the conversation before the latest turn; an empty one if it is not stored."""
        is_stored = self._now.turns and self._now.turns[-1].full
        return (before_turn(self._now, -1) if is_stored else None) or Conversation()

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("this chat is closed: create a new one.")

    # State

    @property
    def messages(self) -> list[Message]:
        """Messages of the conversation in the processor's form; answers are text."""
        return list(self._now.messages)

    @property
    def held(self) -> ChatHeld:
        """Current storage of the conversation, in tokens and bytes."""
        before = [turn.before.cache for turn in self._now.turns if turn.before and turn.full]
        return measure_storage(self._now.cache, before)._replace(by_turn=by_turn(self._now))

    @property
    def usage(self) -> Usage:
        """Sum of the usage of all answers in the conversation; those that were undone are not in
        it, and neither are tokens that were read again.
        """
        return sum((turn.usage for turn in self._now.turns), Usage())

    def picture(self, turn: int = -1) -> Image.Image:
        """Draw the images of a turn, with fog over patches whose pairs were dropped since.

        Turns count from 0; -1 is the latest.

        Raises:
            InvalidInput: there is no such turn, or it has no images, or no pixels of them (a loaded
                chat); or it has videos.
        """
        return draw_turn(self._turns, self._now, self._turn_index(turn))

    @property
    def policy(self) -> Policy:
        """Policy that compresses the conversation."""
        return self._turns.answerer.policy

    # Branches, files, the end

    def fork(self) -> Chat:
        """Return an independent chat that continues from here.

        The model is shared, and so is the cache until one of the chats goes on. ``copy.copy`` and
        ``copy.deepcopy`` do the same.
        """
        turns = self._turns
        other = type(self)(*turns.answerer[:3], **self._settings())
        other._now, other._turns.warned = self._now, turns.warned
        return other

    def __copy__(self) -> Chat:
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> Chat:
        return self.fork()

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a chat cannot be pickled, because it contains the model: use save() and Chat.load(), "
            "or fork() in this process."
        )

    def save(self, path: str | Path) -> Path:
        """Write the chat atomically to a safetensors file: its cache, messages, tokens, settings.

        Pixels of images and videos are not saved, only their KV pairs.

        Raises:
            InvalidInput: there is no turn yet, or a message or setting cannot be written as JSON.
            UnsupportedCache, CannotWrite: as ``Session.save`` raises.
        """
        return persistence.save(Path(path), self._turns.answerer, self._now, self._settings())

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        processor: Any,
        policy: Policy | str | None = None,
    ) -> Chat:
        """Return the chat that ``save`` wrote, with its settings.

        ``policy`` defaults to the one that the chat was compressed with, and must equal it.

        Raises:
            CacheMismatch: the chat belongs to another model, tokenizer or policy.
            InvalidInput: the file is missing, damaged, or contains no chat.
        """
        policy = persistence.policy_in(Path(path)) if policy is None else policy_of(policy)
        answerer = Answerer(model, processor, policy)  # type: ignore[arg-type]
        now, settings = persistence.load(Path(path), answerer)
        chat = cls(model, processor, policy, **settings)
        chat._now = now
        return chat

    def _settings(self) -> dict[str, Any]:
        """Return the keyword arguments that this chat was created with."""
        return {
            "rewrites": self._turns.rewrites,
            "system": self._system,
            "keep_turns": self._keep_turns,
            "positions": self._positions,
            "template_kwargs": self._turns.wording.template,
            **self._defaults,
        }

    def close(self) -> None:
        """Free the cache; nothing can be said any more."""
        self._now, self._closed = Conversation(), True

    def __exit__(self, *error: object) -> None:
        self.close()
