"""``foveate.Chat``: a conversation in one compressed cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from threading import Event
from typing import Any, Literal, overload

from torch import nn

from foveate.chat import saved
from foveate.chat.answering import Answerer
from foveate.chat.asking import Answer
from foveate.chat.held import ChatHeld, held
from foveate.chat.reading import Conversation
from foveate.chat.rewriting import Rewrites
from foveate.chat.streaming import AnswerStream
from foveate.chat.turns import Prepared, Turn, Turns
from foveate.core.composition import BY_DEFAULT
from foveate.core.composition import policy as policy_of
from foveate.core.policy import Policy
from foveate.errors import InvalidInput, InvalidParameter
from foveate.prompts.messages import Message, edited, new_messages
from foveate.prompts.special_tokens import tokenizer_of
from foveate.prompts.template import Wording

_REWRITES = ("keep", "follow", "refuse")


class Chat(AbstractContextManager["Chat"]):
    """A conversation with a model, all of it in one compressed cache.

    Each turn reads its own words and pixels alone, and compresses them together with what is held;
    the model is in a :func:`foveate.compress` block for as long as a turn takes. Under a budget in
    tokens or bytes, what is held never exceeds it by more than the latest answer; under a share it
    grows with the conversation (``held``). A turn that an exception or interrupt leaves is taken
    back. Chats that share a model take turns, also from several threads.

    Args:
        model: a model that :func:`foveate.compress` takes.
        processor: its processor, or, of a model that reads text only, its tokenizer; with a chat
            template.
        policy: a policy or its spec.
        rewrites: what happens where the chat template words earlier turns otherwise than they were
            read: "keep" what was read (the log, "foveate", says so once), "follow" the template, by
            reading the turn before anew, or "refuse" with InvalidInput.
        **template: for every ``apply_chat_template``: ``tools=...``, ``enable_thinking=False``.

    Raises:
        InvalidInput: there is no chat template, or it cannot word plain messages.
        InvalidParameter: an unknown ``rewrites``.
        FoveateError: as :func:`foveate.compress` raises.
    """

    def __init__(
        self,
        model: nn.Module,
        processor: Any,
        policy: Policy | str = BY_DEFAULT,
        *,
        rewrites: Rewrites = "keep",
        **template: Any,
    ):
        if rewrites not in _REWRITES:
            raise InvalidParameter(
                f"rewrites={rewrites!r} is unknown: {', '.join(map(repr, _REWRITES))}."
            )
        answerer = Answerer(model, processor, policy_of(policy))  # type: ignore[arg-type]
        answerer.block()  # refuses what cannot be compressed
        self._turns = Turns(answerer, Wording(processor, template), rewrites)
        self._now = Conversation()
        self._latest: Turn | None = None
        self._stop, self._closed = Event(), False

    # Turns

    @overload
    def say(
        self,
        text: str | Sequence[Message] | None = None,
        *,
        stream: Literal[False] = False,
        **more: Any,
    ) -> Answer: ...
    @overload
    def say(
        self,
        text: str | Sequence[Message] | None = None,
        *,
        stream: Literal[True],
        **more: Any,
    ) -> AnswerStream: ...
    def say(
        self,
        text: str | Sequence[Message] | None = None,
        *,
        images: Any = (),
        videos: Any = (),
        system: str | None = None,
        messages: Sequence[Message] = (),
        stream: bool = False,
        **generate: Any,
    ) -> Answer | AnswerStream:
        """Says something, and returns what the model answers.

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
            system: a system message, in front of this turn.
            messages: messages in the processor's or OpenAI's form, in front of ``text``: a history
                to begin with, tools' answers, texts between images.
            stream: whether to return at once an iterable of pieces of the answer's text.
            **generate: for ``model.generate``; without a number, an answer has 256 tokens at most.

        Raises:
            InvalidInput: nothing is said; a history other than the conversation so far; an image
                that cannot be read, or that the model does not see; a message that the template
                drops; beams or several sequences; or what the processor or template refuses.
        """
        said = new_messages(text, images, videos, system, messages)
        new = tuple(map(self._turns.wording.formed, said))
        return self._turn(lambda: Turn(self._now, new, generate), stream)

    @overload
    def retry(self, *, stream: Literal[False] = False, **generate: Any) -> Answer: ...
    @overload
    def retry(self, *, stream: Literal[True], **generate: Any) -> AnswerStream: ...
    def retry(self, *, stream: bool = False, **generate: Any) -> Answer | AnswerStream:
        """Answers the latest turn anew, from what was held before it; what is given to ``generate``
        is as it was, but for what is given here.

        Raises:
            InvalidInput: nothing was said yet, or the chat was loaded since.
        """
        return self._again(None, stream, generate)

    @overload
    def edit(self, text: str, *, stream: Literal[False] = False, **generate: Any) -> Answer: ...
    @overload
    def edit(self, text: str, *, stream: Literal[True], **generate: Any) -> AnswerStream: ...
    def edit(self, text: str, *, stream: bool = False, **generate: Any) -> Answer | AnswerStream:
        """Says ``text`` in the place of what the user said last, with the same images.

        Raises:
            InvalidInput: as ``retry`` raises.
        """
        return self._again(text, stream, generate)

    def stop(self) -> None:
        """Ends the answer that is being made, from another thread or a signal's handler; what has
        been said is kept, and the chat goes on.
        """
        self._stop.set()

    def _again(
        self, text: str | None, stream: bool, generate: Mapping[str, Any]
    ) -> Answer | AnswerStream:
        def latest() -> Turn:
            if self._latest is None:
                raise InvalidInput(
                    "there is no turn to answer anew: nothing has been said since this chat began "
                    "or was loaded."
                )
            before, new, options = self._latest
            new = new if text is None else edited(new, text)
            return Turn(before, new, {**options, **generate})

        return self._turn(latest, stream)

    def _turn(self, turn: Callable[[], Turn], stream: bool) -> Answer | AnswerStream:
        with ExitStack() as mine:
            mine.enter_context(self._turns.answerer.lock())
            if self._closed:
                raise InvalidInput("this chat was closed: begin another one.")
            self._stop = stop = Event()
            fork = Conversation() if self._latest is None else self._latest.before
            ready = self._turns.prepared(turn(), fork)
            if not stream:
                return self._answered(ready, stop)
            until = mine.pop_all()  # the thread that answers lets the next one in

            def answer(streamer: Any) -> Answer:
                with until:
                    return self._answered(ready, stop, streamer)

            words = tokenizer_of(self._turns.answerer.processor)
            return AnswerStream(words, answer, stop.set)

    def _answered(self, ready: Prepared, stop: Event, streamer: Any = None) -> Answer:
        answer, after = self._turns.answered(ready, stop, streamer)
        if not self._closed:
            self._now, self._latest = after, ready.turn
        return answer

    # What there is

    @property
    def messages(self) -> list[Message]:
        """All that was said, in the processor's form; answers as text."""
        return list(self._now.messages)

    @property
    def held(self) -> ChatHeld:
        """How much of the conversation is held now, in tokens and bytes."""
        before = None if self._latest is None else self._latest.before.cache
        return held(self._now.cache, before)

    @property
    def policy(self) -> Policy:
        """Under which it is compressed."""
        return self._turns.answerer.policy

    # Branches, files, the end

    def fork(self) -> Chat:
        """A chat that goes on from here by itself. Nothing is copied before one of them goes on."""
        turns = self._turns
        made = type(self)(*turns.answerer, rewrites=turns.rewrites, **turns.wording.template)
        made._now, made._latest, made._turns.said = self._now, self._latest, turns.said
        return made

    def save(self, path: str | Path) -> Path:
        """Writes the chat to a safetensors file, whole or not at all: its cache, words and tokens;
        of images and videos what is held of them in the cache, and no pixels.

        Raises:
            InvalidInput: nothing was said yet, or a message or template argument is not JSON's.
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
        """The chat that ``save`` wrote, in this or another process, under the policy that it was
        compressed with, which need not be given.

        Raises:
            CacheMismatch: it belongs to another model, tokenizer or policy.
            InvalidInput: the file is missing, damaged, or holds no chat.
        """
        policy = saved.policy_in(Path(path)) if policy is None else policy_of(policy)
        answerer = Answerer(model, processor, policy)  # type: ignore[arg-type]
        now, settings = saved.load(Path(path), answerer)
        made = cls(model, processor, policy, rewrites=settings["rewrites"], **settings["template"])
        made._now = now
        return made

    def _settings(self) -> dict[str, Any]:
        return {"rewrites": self._turns.rewrites, "template": self._turns.wording.template}

    def close(self) -> None:
        """Frees what is held; nothing can be said any more."""
        self._now, self._latest, self._closed = Conversation(), None, True

    def __exit__(self, *error: object) -> None:
        self.close()
