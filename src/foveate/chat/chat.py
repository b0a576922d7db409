"""``foveate.Chat``: a conversation in one compressed cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Literal, NoReturn, overload

from torch import nn

from foveate.chat import saved
from foveate.chat.answering import Answerer, Conversation
from foveate.chat.asking import Answer, check_template_arguments, with_defaults
from foveate.chat.held import ChatHeld, held
from foveate.chat.streaming import AnswerStream
from foveate.chat.turns import Prepared, Rewrites, Turn, Turns
from foveate.compression.composition import BY_DEFAULT
from foveate.compression.composition import policy as policy_of
from foveate.errors import InvalidInput, InvalidParameter
from foveate.hf.attach.model_queue import QueuePlace, enter
from foveate.policies.policy import Policy
from foveate.prompts.messages import Message, edited, new_messages
from foveate.prompts.special_tokens import tokenizer_of
from foveate.prompts.template import Wording

Text = str | Sequence[Message] | None
"""What a user says: a text, or messages."""
_REWRITES = ("keep", "follow", "refuse")
_OWN = ("policy", "rewrites", "system", "keep_turns", "template_kwargs")
_OF_SAY = ("text", "images", "videos", "system", "messages", "stream")


class Chat(AbstractContextManager["Chat"]):
    """A conversation with a model, all of it in one compressed cache.

    Each turn reads its own words and pixels alone, and compresses them together with what is
    stored; the model is in a :func:`foveate.compress` context for as long as a turn takes. Under a
    budget in tokens, the cache never exceeds it by more than the latest answer; under one in bytes,
    it never exceeds it between turns, unless the latest answer alone needs more; under a share it
    grows with the conversation (``held``). A turn that an exception or interrupt ends is taken
    back. Chats, pipelines and streams that share a model, also under a PEFT wrapper and from
    several threads, take turns in the order of their calls.

    Args:
        model: a model that :func:`foveate.compress` takes.
        processor: its processor, or, of a model that reads text only, its tokenizer; with a chat
            template.
        policy: a policy or its spec.
        rewrites: what happens where the chat template words earlier turns otherwise than they were
            read: "keep" what was read (the log, "foveate", says so once), "follow" the template, by
            reading the turn before anew, or "refuse" with InvalidInput.
        system: the system message of the first turn, unless that turn brings one.
        keep_turns: 1 keeps a copy of the cache before the latest turn, for ``retry`` and ``edit``
            (``held.before`` bytes); 0 keeps none.
        template_kwargs: for every ``apply_chat_template``: ``{"enable_thinking": False}``.
        **generate: arguments of ``model.generate`` for every answer, such as
            ``max_new_tokens=64``; a call's own arguments override them.

    Raises:
        InvalidInput: there is no chat template, or it cannot word plain messages; an argument of
            ``generate`` that a chat decides.
        InvalidParameter: an unknown argument, template argument or ``rewrites``, or ``keep_turns``
            other than 0 and 1.
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
        template_kwargs: Mapping[str, Any] | None = None,
        **generate: Any,
    ):
        if rewrites not in _REWRITES:
            raise InvalidParameter(
                f"rewrites={rewrites!r} is unknown: {', '.join(map(repr, _REWRITES))}."
            )
        if keep_turns not in (0, 1):
            raise InvalidParameter(
                f"keep_turns={keep_turns!r}: retry and edit go back one turn at most. Give 1 or 0."
            )
        answerer = Answerer(model, processor, policy_of(policy))  # type: ignore[arg-type]
        answerer.block()  # refuses what cannot be compressed
        answerer.check(generate, "Chat(...)", _OWN, complete=False)
        check_template_arguments(template_kwargs or {}, processor)
        wording = Wording(processor, template_kwargs or {})
        self._turns = Turns(answerer, wording, rewrites)
        self._system, self._keep_turns, self._defaults = system, keep_turns, dict(generate)
        self._now = Conversation()
        self._latest: Turn | None = None
        self._stops: list[Event] = []  # of turns that run or wait
        self._closed = False

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
        """Say something, and return the model's answer.

        Args:
            text: what the user says, or a list of messages. Special tokens in it are read as text.
                Messages may begin with the conversation so far, of which only the rest is read.
            images: images in front of the text, or a single one. Each is a PIL image, a path,
                ``file://`` or http(s) address, base64, a file's bytes, a mapping such as
                ``{"bytes": ..., "path": ...}``, or an array or tensor [height, width, channels] or
                [channels, height, width] of 1, 3 or 4 channels, uint8 or floats in [0, 1].
            videos: videos behind the images, or a single one: a :class:`foveate.Clip` (of
                :func:`foveate.read_video`), whose times the processor is told, an array or tensor
                of frames [n, height, width, 3], or a list of images. All frames are read.
            system: a system message, in front of this turn; it overrides the chat's own.
            messages: messages in the processor's or OpenAI's form, in front of ``text``: a history
                to begin with, tools' answers, texts between images.
            stream: whether to return at once an iterable of pieces of the answer's text, also
                while the model answers another chat.
            **generate: for ``model.generate``; without a number, an answer has 256 tokens at most.

        Raises:
            InvalidInput: nothing is said; a history other than the conversation so far; an image
                that cannot be read, or that the model does not see; a message that the template
                drops; beams or several sequences; or what the processor or template refuses.
            InvalidParameter: an argument that neither ``say`` nor ``generate`` takes.
            AlreadyCompressing: called from a callback of an answer of the same model; or the model
                is in a :func:`foveate.compress` context.
        """
        options = self._checked(generate, "say(...)", _OF_SAY)
        given = new_messages(text, images, videos, system, messages)
        new = tuple(map(self._turns.wording.formed, given))
        return self._turn(lambda: Turn(self._now, self._with_system(new), options), new, stream)

    @overload
    def retry(self, *, stream: Literal[False] = False, **generate: Any) -> Answer: ...
    @overload
    def retry(self, *, stream: Literal[True], **generate: Any) -> AnswerStream: ...
    def retry(self, *, stream: bool = False, **generate: Any) -> Answer | AnswerStream:
        """Answer the latest turn again, from the cache before it; arguments of ``generate`` are
        those of that turn, overridden by those given here.

        Raises:
            InvalidInput: nothing was said yet, the chat was loaded since, or it keeps no turn
                (``keep_turns=0``).
        """
        return self._again(None, stream, generate, "retry(...)")

    @overload
    def edit(self, text: str, *, stream: Literal[False] = False, **generate: Any) -> Answer: ...
    @overload
    def edit(self, text: str, *, stream: Literal[True], **generate: Any) -> AnswerStream: ...
    def edit(self, text: str, *, stream: bool = False, **generate: Any) -> Answer | AnswerStream:
        """Say ``text`` in the place of the user's latest text, with the same images.

        Raises:
            InvalidInput: as ``retry`` raises.
        """
        return self._again(text, stream, generate, "edit(...)")

    def stop(self) -> None:
        """End the answer that is generated, from another thread or a signal's handler; the text so
        far is kept, and the chat goes on. Turns of this chat that still wait for the model are read
        when it is free, and end after a token.
        """
        for stop in tuple(self._stops):
            stop.set()

    def _again(
        self, text: str | None, stream: bool, generate: Mapping[str, Any], call: str
    ) -> Answer | AnswerStream:
        self._checked(generate, call, ("text", "stream"))

        def latest() -> Turn:
            if self._latest is None:
                raise InvalidInput(self._why_no_turn())
            before, new, options = self._latest
            new = new if text is None else edited(new, text)
            return Turn(before, new, with_defaults(options, generate))

        return self._turn(latest, (), stream)

    def _why_no_turn(self) -> str:
        if self._keep_turns == 0 and self._now.messages:
            return (
                "this chat keeps no cache of an earlier turn (keep_turns=0), so no turn can be "
                "answered again: make it with keep_turns=1."
            )
        return (
            "there is no turn to answer anew: nothing has been said since this chat began "
            "or was loaded."
        )

    def _checked(
        self, generate: Mapping[str, Any], call: str, own: Sequence[str]
    ) -> dict[str, Any]:
        """Return a call's arguments over the chat's own; refuse what ``generate`` cannot have."""
        options = with_defaults(self._defaults, generate)
        self._turns.answerer.check(options, call, own)
        return options

    def _with_system(self, new: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the messages of a turn, with the chat's system message where none came before."""
        if self._system is None or any(m["role"] == "system" for m in (*self._now.messages, *new)):
            return new
        system = {"role": "system", "content": self._system}
        return new if self._now.messages else (self._turns.wording.formed(system), *new)

    def _turn(
        self, turn: Callable[[], Turn], new: Sequence[Message], stream: bool
    ) -> Answer | AnswerStream:
        """Take a turn; ``new`` are the messages that are known at the call."""
        self._check_open()
        stop = Event()
        with ExitStack() as undo:
            undo.callback(self._stops.remove, stop)
            self._stops.append(stop)
            place = enter(self._turns.answerer.model, sys._getframe())
            undo.callback(place.leave)
            ready = self._ready_at_call(turn, new)
            answered = partial(self._answered, place, turn, ready, stop)
            if not stream:
                return answered()
            return self._streamed(answered, undo, stop, place)

    def _streamed(
        self, answered: Callable[..., Answer], undo: ExitStack, stop: Event, place: QueuePlace
    ) -> AnswerStream:
        """Have a thread of its own answer, and then undo."""
        undo_there = undo.pop_all()

        def answer(streamer: Any) -> Answer:
            with undo_there:
                return answered(streamer)

        try:
            tokenizer = tokenizer_of(self._turns.answerer.processor)
            return AnswerStream(tokenizer, answer, stop, place)
        except Exception:  # no thread
            undo_there.close()
            raise

    def _ready_at_call(self, turn: Callable[[], Turn], new: Sequence[Message]) -> Prepared | None:
        """Prepare a turn as far as the model is not needed, so that errors are raised at the call;
        None where an earlier turn of this chat has to end first, or the model has to read.
        """
        planned = turn() if len(self._stops) == 1 else None
        if planned is None or self._turns.needs_model(planned):
            self._turns.check(new)
            return None
        return self._turns.prepared(planned, self._fork_point())

    def _answered(
        self,
        place: QueuePlace,
        turn: Callable[[], Turn],
        ready: Prepared | None,
        stop: Event,
        streamer: Any = None,
    ) -> Answer:
        """Answer once the model is free."""
        with place:
            self._check_open()
            if ready is None:
                ready = self._turns.prepared(turn(), self._fork_point())
            answer, after = self._turns.answered(ready, stop, streamer)
            if not self._closed:
                self._now = after
                self._latest = ready.turn if self._keep_turns else None
        return answer

    def _fork_point(self) -> Conversation:
        """Return the conversation before the latest turn."""
        return Conversation() if self._latest is None else self._latest.before

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidInput("this chat was closed: begin another one.")

    # What there is

    @property
    def messages(self) -> list[Message]:
        """The conversation in the processor's form; answers as text."""
        return list(self._now.messages)

    @property
    def held(self) -> ChatHeld:
        """How much of the conversation is stored now, in tokens and bytes."""
        before = None if self._latest is None else self._latest.before.cache
        return held(self._now.cache, before)

    @property
    def policy(self) -> Policy:
        """The policy under which the conversation is compressed."""
        return self._turns.answerer.policy

    # Branches, files, the end

    def fork(self) -> Chat:
        """Return a chat that goes on from here by itself. Nothing is copied before one of them goes
        on; ``copy.copy`` and ``copy.deepcopy`` do the same, and the model is shared.
        """
        turns = self._turns
        other = type(self)(*turns.answerer, **self._settings())
        other._now, other._latest, other._turns.warned = self._now, self._latest, turns.warned
        return other

    def __copy__(self) -> Chat:
        return self.fork()

    def __deepcopy__(self, memo: dict[int, Any]) -> Chat:
        return self.fork()

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a chat cannot be pickled, as its model would go along: use save() and Chat.load(), or "
            "fork() in this process."
        )

    def save(self, path: str | Path) -> Path:
        """Write the chat to a safetensors file, completely or not at all: its cache, words, tokens
        and settings; of images and videos what the cache has of them, and no pixels.

        Raises:
            InvalidInput: nothing was said yet, or a message or setting is not JSON's.
            UnsupportedCache, CannotWrite: as ``Session.save`` raises.
        """
        return saved.save(Path(path), self._turns.answerer, self._now, self._settings())

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        processor: Any,
        policy: Policy | str | None = None,
    ) -> Chat:
        """Return the chat that ``save`` wrote, in this or another process, with its settings and
        under the policy that it was compressed with, which need not be given.

        Raises:
            CacheMismatch: it belongs to another model, tokenizer or policy.
            InvalidInput: the file is missing, damaged, or holds no chat.
        """
        policy = saved.policy_in(Path(path)) if policy is None else policy_of(policy)
        answerer = Answerer(model, processor, policy)  # type: ignore[arg-type]
        now, settings = saved.load(Path(path), answerer)
        chat = cls(model, processor, policy, **settings)
        chat._now = now
        return chat

    def _settings(self) -> dict[str, Any]:
        """Return the keyword arguments of a chat like this one."""
        return {
            "rewrites": self._turns.rewrites,
            "system": self._system,
            "keep_turns": self._keep_turns,
            "template_kwargs": self._turns.wording.template,
            **self._defaults,
        }

    def close(self) -> None:
        """Free the cache; nothing can be said any more."""
        self._now, self._latest, self._closed = Conversation(), None, True

    def __exit__(self, *error: object) -> None:
        self.close()
