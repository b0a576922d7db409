"""``foveate.Stream``: an endless video in a cache of bounded size."""

from __future__ import annotations

import copy
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, Literal, NoReturn, overload

from PIL import Image
from torch import nn
from transformers import DynamicCache

from foveate.chat.generation import Answer, check, check_template_arguments, with_defaults
from foveate.chat.persistence import policy_in
from foveate.chat.positions import Positions
from foveate.chat.storage import bytes_of, tokens_of
from foveate.chat.streaming import AnswerStream
from foveate.compression.composition import policy as policy_of
from foveate.errors import InvalidInput, InvalidParameter, NothingCompressed, UnsupportedCache
from foveate.hf import Session
from foveate.hf.attach.model_queue import enter
from foveate.hf.endless.endless import Made, begun, endless, forget, looked_at, say_images
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.hf.model.internals import CACHE
from foveate.policies.policy import Policy
from foveate.policies.spec import print_value
from foveate.prompts.special_tokens import tokenizer_of
from foveate.stream import persistence
from foveate.stream.offload import Offload
from foveate.stream.offloaded import Offloaded
from foveate.stream.picture import draw_frames, images_of
from foveate.stream.positions import StreamPositions
from foveate.stream.reading import (
    Chunk,
    Exchange,
    Frames,
    Words,
    answer,
    of_frames,
    of_question,
    of_text,
    parts_of,
)
from foveate.stream.storage import Bound, FrameLog, StreamFrame, StreamHeld

_OWN = ("policy", "words", "system", "every", "keep_opening", "positions", "offload")
_check = partial(check, by="a stream", several="Leave it 1.")
_FORGETS = 256  # columns without a stored pair, until they are removed


class Stream(AbstractContextManager["Stream"]):
    """Endless stream of video frames, and answers to questions about them.

    The policy compresses the cache between frames, so memory and the time for a frame stay
    constant. Questions are answered on a branch of the cache, and leave no trace. The model is in a
    :func:`foveate.compress` context only while a frame is read or a question is answered. Streams
    and chats that share it, also from several threads, take turns in the order of their calls.

    Args:
        model: a vision-language model that :func:`foveate.compress` takes.
        processor: its processor.
        policy: a policy or its spec, with a budget in tokens or bytes. Rules for the end of a
            prompt apply between frames.
        words: the text around images; by default from the chat template.
        system: the system prompt; by default the template's own. Not with ``words``.
        every: number of pairs by which heads may exceed the budget before they are compressed;
            default: the policy's own, or 256.
        keep_opening: always keep the text before the first frame, within the budget.
        positions: "true": positions grow with the stream, also beyond the range that the model was
            trained for (with one warning in the log "foveate"). "reindexed": before that, gaps of
            dropped tokens are closed, and keys are rotated accordingly.
        offload: settings for keeping every frame outside the cache, too, and inserting those that a
            question is about; by default, dropped pairs are lost.
        template_kwargs: arguments of ``apply_chat_template``, e.g. ``{"enable_thinking": False}``.
            Not with ``words``.
        **generate: arguments of ``model.generate`` for every answer, such as
            ``max_new_tokens=64``; a call's own arguments override them.

    Raises:
        InvalidBudget: the budget is a share.
        InvalidParameter: an unknown argument, or one that ``words`` replaces; a policy that needs
            the whole prompt, or cannot keep an opening; unknown ``positions``; with ``offload``,
            reindexed positions, or a policy that compresses during answers or prunes.
        InvalidInput: the text of a frame cannot be derived from the chat template, or another
            stream uses the folder of ``offload``.
        UnsupportedModel: as for ``compress``; and at the first frame, if positions are reindexed or
            ``offload`` is set, a model that rotates keys in an unknown way.
    """

    def __init__(
        self,
        model: nn.Module,
        processor: Any,
        policy: Policy | str = "infinipotv:budget=4096",
        *,
        words: Words | None = None,
        system: str | None = None,
        every: int | None = None,
        keep_opening: bool = True,
        positions: Positions = "true",
        offload: Offload | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **generate: Any,
    ):
        endless_policy = endless(policy_of(policy), every)
        if offload is not None:
            offload.check(endless_policy, positions)
        checked = Session(model, endless_policy, tokenizer=processor, queued=True).model
        _check(checked, processor, generate, "Stream(...)", _OWN, complete=False)
        self.words = _words(processor, words, system, template_kwargs or {})
        self._opening = of_text(checked, processor, self.words.opening, first=True)
        if keep_opening and self._opening.shape[1]:
            endless_policy = _with_sinks(endless_policy, self._opening.shape[1])
        session = Session(model, endless_policy, tokenizer=processor, queued=True)
        self._start(session, processor, positions, None if offload is None else Offloaded(offload))
        self._defaults = dict(generate)
        if self._offloaded is not None:
            self._offloaded.claim()

    def _start(
        self, session: Session, processor: Any, positions: Positions, offloaded: Offloaded | None
    ) -> None:
        self.model, self.processor, self.policy = session.model, processor, session.policy
        self._session = session
        self._cache: DynamicCache | None = None
        self._images = self._peak = self._single_frames = 0
        self._interrupted = False
        self._frames, self._exchanges = FrameLog(), list[Exchange]()
        self._bound = Bound(self.policy)
        self._positions = StreamPositions(
            self.model, processor, self.policy, positions, turns=offloaded is not None
        )
        session.link.records_positions = True
        self._offloaded = offloaded

    def __repr__(self) -> str:
        return f"Stream({self.policy.spec}: {self._images} frames seen)"

    def see(
        self,
        frames: Frames,
        time: int | float | Sequence[int | float] | None = None,
        *,
        fps: int | float | None = None,
    ) -> StreamHeld:
        """Read a frame, a few at once, or a video.

        Args:
            frames: an image of any form (as in :meth:`foveate.Chat.say`), a list of images, a
                :class:`foveate.Clip` or the path of a video file such as "film.mp4" (both are read
                eight frames at a time; a file is decoded as it is read), or a processor's output of
                one chunk of video (``input_ids`` of one row, pixels, grids), which is read
                unchanged.
            time: seconds since the beginning of the stream, of the frame or of each; written in
                front of the frame. A video has its own times, to which a single number is added.
                Default: none for images.
            fps: frames per second to sample from a video file; default: 1.

        Returns:
            The size of the stream's memory.

        Raises:
            InvalidInput: there is no frame, the number of times is not that of the frames, or the
                video file cannot be read; the frames before a fault in it were read.
            MissingPackage: PyAV, which reads video files, is not installed.
            AlreadyCompressing: called from a callback of an answer of the same model; or the model
                is in a :func:`foveate.compress` context.
            InvalidBudget: the frame was read, but is larger than the limit of ``offload``.
            CannotWrite: the frame was read, but the folder of ``offload`` is full or read-only.
            UnsupportedCache: an earlier call was interrupted while the model read; load a saved
                stream, or start a new one.
        """
        parts = parts_of(frames, time, fps)  # opens a file before the turn begins
        with enter(self.model, sys._getframe()):
            for part, times in parts:
                self._see(part, times)
            return self.held

    def _see(self, frames: Frames, time: int | float | Sequence[int | float] | None) -> None:
        """Read one chunk."""
        self._check()
        chunk = of_frames(self.model, self.processor, self.words, frames, time, self._images)
        self._positions.find_ways()
        with self._session as session:
            cache = self._cache = self._cache or self._new_cache(session)
            with self._guard_cache(cache):
                self._frames.add(chunk.image, chunk.times)
                pairs = self._read(session, cache, chunk)
                self._positions.keep(cache)
                self._images += chunk.images
        self._warn_of_single_frames(chunk.images)
        self._bound.longest = max(self._bound.longest, chunk.tokens)
        self._peak = max(self._peak, bytes_of(self._cache))
        if self._offloaded is not None:
            # last: if it fails, the stream goes on without this frame's copy
            self._offloaded.keep(pairs, chunk.image, chunk.spot, self._positions.ways)

    @overload
    def ask(self, question: str, *, stream: Literal[False] = False, **more: Any) -> Answer: ...
    @overload
    def ask(self, question: str, *, stream: Literal[True], **more: Any) -> AnswerStream: ...
    def ask(
        self, question: str, *, follow_up: bool = False, stream: bool = False, **generate: Any
    ) -> Answer | AnswerStream:
        """Answer a question about the frames so far.

        Args:
            question: the text of the question.
            follow_up: let the model read the latest question with its answer again; if that one was
                a follow-up question, too, also those before it.
            stream: return an iterable of pieces of the answer's text at once. Frames that are read
                later wait until the answer ends.
            **generate: arguments of the model's ``generate``: ``max_new_tokens`` (256 by default),
                ``do_sample``, ``streamer``.

        Raises:
            NothingCompressed: no frame was seen yet.
            UnsupportedCache: a call of ``see`` was interrupted.
            InvalidInput: an argument that the stream sets itself, several answers at once, a
                missing or damaged file of an offloaded frame, or a follow-up question under
                ``words`` without text for it.
            InvalidParameter: an argument that ``generate`` does not take.
            AlreadyCompressing: as ``see`` raises.
        """
        options = with_defaults(self._defaults, generate)
        _check(self.model, self.processor, options, "ask(...)", ("question", "follow_up", "stream"))
        if stream and options.get("streamer") is not None:
            raise InvalidInput("streamer=... and stream=True exclude each other: give only one.")
        stop, queue_place = Event(), enter(self.model, sys._getframe())

        def answered(streamer: Any = None) -> Answer:
            more = options if streamer is None else {**options, "streamer": streamer}
            with queue_place:
                return self._answer(question, follow_up, more, stop)

        if not stream:
            return answered()
        return AnswerStream(tokenizer_of(self.processor), answered, stop, queue_place)

    def _answer(
        self, question: str, follow_up: bool, options: Mapping[str, Any], stop: Event
    ) -> Answer:
        """Answer on a copy of the cache, and remember the question."""
        branch = copy.deepcopy(self._seen())
        self._positions.find_ways()
        earlier = self._exchanges if follow_up else []
        ids = of_question(self.model, self.processor, self.words, question, earlier)
        with self._session as session:
            if self._offloaded is not None:
                self._offloaded.fetch(session, branch, ids, self._positions.ways)
            reply = answer(session, self.processor, branch, ids, options, stop)
        self._exchanges = [*earlier, Exchange(question, reply.ids.tolist())]
        return reply

    @property
    def frames(self) -> tuple[StreamFrame, ...]:
        """Frames of which something is stored, with their times and shares.

        Raises UnsupportedCache as ``see`` does.
        """
        self._check()
        return () if self._cache is None else self._frames.left(self._cache)

    def picture(
        self, seen: Frames, *, fps: int | float | None = None, first: int = 0
    ) -> Image.Image:
        """Draw the frames that are left with their times, and fog over patches that were dropped.

        Shown are at most 24 frames, those with the largest kept shares.

        Args:
            seen: the pixels, which a stream does not store: images, a clip or the path of a video
                file, as ``see`` read them.
            fps: as in ``see``.
            first: number of the stream's frame, from 0, that ``seen`` begins with.

        Raises:
            NothingCompressed: no frame was seen yet.
            InvalidInput: none of the frames is left; one has other tokens than when it was read; or
                as ``see`` raises.
        """
        cache = self._seen()
        images = images_of(seen, fps)
        parts = self.model, self.processor, self.words
        return draw_frames(*parts, cache, self.frames, self.held, images, first)

    @property
    def fetched(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the frames, from 0, that each layer fetched for the latest question."""
        return () if self._offloaded is None else self._offloaded.fetched

    @property
    def held(self) -> StreamHeld:
        """Current size of the stream's memory; raises UnsupportedCache as ``see`` does."""
        self._check()
        if self._cache is None:
            return StreamHeld(0.0, 0, 0, 0, 0, 0)
        offloaded = 0 if self._offloaded is None else self._offloaded.nbytes
        layers = foveate_layers(self._cache)
        tokens, bound = tokens_of(layers), self._bound.bytes(layers)
        seen = layers[0].seen + known_state(self._cache).tokens.forgotten
        return StreamHeld(
            tokens, seen, self._images, bytes_of(self._cache), self._peak, bound, offloaded
        )

    def save(self, path: str | Path) -> Path:
        """Write the stream atomically to a safetensors file; the stream can go on.

        Raises:
            NothingCompressed: no frame was seen yet.
            UnsupportedCache: a call of ``see`` was interrupted; an earlier file stays as it is.
            InvalidInput: the file of an offloaded frame is missing or damaged.
            CannotWrite: the disk is full, or the path cannot be written to.
        """
        entries = {
            "images": self._images,
            "peak": self._peak,
            "longest": self._bound.longest,
            "positions": self._positions.positions,
            "words": list(self.words),
            "generate": self._defaults,
            "frames": self._frames.entries,
            "exchanges": self._exchanges,
        }
        with enter(self.model, sys._getframe()):
            seen = self._seen()
            return persistence.save(
                Path(path), self._session, self.processor, seen, entries, self._offloaded
            )

    @classmethod
    def load(
        cls,
        path: str | Path,
        model: nn.Module,
        processor: Any,
        *,
        folder: str | Path | None = None,
    ) -> Stream:
        """Load a stream that ``save`` wrote, to go on with it in this or another process.

        Args:
            path: the file, which includes the offloaded frames.
            model: the model that read the stream.
            processor: its processor.
            folder: a folder for offloaded frames instead of the stream's own.

        Raises:
            CacheMismatch: the stream was saved with another model or tokenizer.
            InvalidInput: the file is missing, damaged, or contains no stream, or another stream
                uses the folder.
            InvalidParameter: ``folder`` for a stream that does not offload.
            CannotWrite: the folder cannot be written to.
        """
        stream = cls.__new__(cls)
        policy = policy_in(Path(path))
        session = Session(model, policy, tokenizer=processor, queued=True)
        new_folder = None if folder is None else Path(folder)
        with enter(session.model, sys._getframe()):
            cache, entries, offloaded = persistence.load(Path(path), session, processor, new_folder)
        stream._start(session, processor, entries["positions"], offloaded)
        stream._cache, stream._defaults = cache, entries.get("generate", {})
        stream.words, stream._images = Words(*entries["words"]), entries["images"]
        stream._opening = of_text(stream.model, processor, stream.words.opening, first=True)
        stream._frames = FrameLog(entries.get("frames", ()))
        stream._exchanges = [Exchange(*exchange) for exchange in entries.get("exchanges", ())]
        stream._peak, stream._bound.longest = entries["peak"], entries["longest"]
        return stream

    def close(self) -> None:
        """Free the cache and offloaded frames; the stream can begin again."""
        if self._offloaded is not None:
            self._offloaded.close()
        emptied = self._offloaded and Offloaded(self._offloaded.settings)
        self._start(self._session, self.processor, self._positions.positions, emptied)

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a stream cannot be copied or pickled, because it contains the model: use save() and "
            "Stream.load()."
        )

    def _new_cache(self, session: Session) -> DynamicCache:
        """Return a new cache with the text before the first frame."""
        cache = begun(session.model, session.policy, session.link)
        if self._opening.shape[1]:
            session.prefill(input_ids=self._opening, **{CACHE: cache})
            if self._offloaded is not None:
                self._offloaded.count(self._opening.shape[1])
        return cache

    def _read(self, session: Session, cache: DynamicCache, chunk: Chunk) -> Made:
        """Read a chunk, and return its pairs (empty without ``offload``)."""
        offloaded, pairs = self._offloaded, Made()
        say_images(cache, (chunk.image, chunk.spot))
        with looked_at(cache, pairs if offloaded else None):
            session.prefill(**chunk.inputs, **{CACHE: cache})
        layers, stay = foveate_layers(cache), None
        for layer in layers:  # the prompt never ends, so empty slots would stay and take memory
            layer.settle()
        if layers[0].seen > max(layer.pairs.longest for layer in layers) + _FORGETS:
            stay = forget(cache)
        if stay is not None and (images := known_state(cache).images()) is not None:
            self._frames.drop(images[0])
        if offloaded is not None:
            offloaded.count(chunk.tokens)
            offloaded.forget(stay)
        return pairs

    @contextmanager
    def _guard_cache(self, cache: DynamicCache) -> Iterator[None]:
        """Guard a change of the cache: mark the stream as interrupted if an exception leaves it
        half done.
        """
        seen, self._interrupted = foveate_layers(cache)[0].seen, True
        try:
            yield
            self._interrupted = False
        except BaseException:
            ongoing = known_state(cache).ongoing
            reads = ongoing is not None and ongoing.reads and not ongoing.done
            self._interrupted = reads or foveate_layers(cache)[0].seen != seen
            raise

    def _warn_of_single_frames(self, images: int) -> None:
        """Warn at the second frame that was read alone: the last frame of a video may be alone."""
        self._single_frames += images == 1
        compares = getattr(self.policy.prune, "compares_frames", False)
        if compares and images == 1 and self._single_frames == 2:
            logging.getLogger("foveate").warning(
                "%s compares the frames of one call of see(), so a frame that is read alone is not "
                "pruned. Give see() several at once. Logged once per stream.",
                print_value(self.policy.prune),
            )

    def _check(self) -> None:
        if self._interrupted:
            raise UnsupportedCache(
                "a call of see() was interrupted while the model read, so this stream's memory is "
                "incomplete. Load a saved stream (Stream.load), or close() this one to begin again."
            )

    def _seen(self) -> DynamicCache:
        self._check()
        if self._cache is None:
            raise NothingCompressed("this stream has seen no frame yet: call see(frame) first.")
        return self._cache


def _words(
    processor: Any, words: Words | None, system: str | None, template_kwargs: Mapping[str, Any]
) -> Words:
    """Return the text around images: ``words``, or that of the chat template."""
    if words is None:
        check_template_arguments(template_kwargs, processor)
        return Words.of(processor, system, **template_kwargs)
    if system is not None or template_kwargs:
        name = "template_kwargs" if system is None else "system"
        raise InvalidParameter(
            f"{name}=... is for the chat template, which words=... replaces: write it into "
            "Words(opening=...), or leave words out."
        )
    return words


def _with_sinks(policy: Policy, opening: int) -> Policy:
    """Return the policy with at least ``opening`` sinks, so that the opening always stays."""
    select: Any = policy.select
    if not hasattr(select, "sinks"):
        raise InvalidParameter(
            f"{select!r} cannot keep the text before the first frame. Use a selection with sinks, "
            "such as select=top_k(), or keep_opening=False."
        )
    return policy.but(select=replace(select, sinks=max(select.sinks, opening)))
