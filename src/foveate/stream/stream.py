"""``foveate.Stream``: a video without an end, in a cache that grows no further."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from torch import nn
from transformers import DynamicCache

from foveate.chat.asking import Answer, check, check_template_arguments, with_defaults
from foveate.chat.held import bytes_of, tokens_of
from foveate.chat.saved import policy_in
from foveate.compression.composition import policy as policy_of
from foveate.errors import InvalidInput, InvalidParameter, NothingCompressed, UnsupportedCache
from foveate.hf import Session
from foveate.hf.attach.model_queue import enter
from foveate.hf.endless.endless import Made, begun, endless, forget, looked_at, say_images
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.hf.model.internals import CACHE
from foveate.policies.policy import Policy
from foveate.stream import saved
from foveate.stream.elsewhere import Offloaded
from foveate.stream.held import Bound, StreamHeld
from foveate.stream.offload import Offload
from foveate.stream.places import Places, Positions
from foveate.stream.reading import Chunk, Frames, Words, answer, of_frames, of_question, of_text

_OWN = ("policy", "words", "system", "every", "keep_opening", "positions", "offload")
_check = partial(check, by="a stream", several="Leave it 1.")
_FORGETS = 256  # columns that nobody holds, until they are counted no more


class Stream(AbstractContextManager["Stream"]):
    """Frames go in one after the other, for as long as there are any; questions are answered on a
    branch, and the stream goes on as if nobody had asked.

    Between frames what is held is compressed as the policy says, so memory and the time of a frame
    stay the same. The model is in a :func:`foveate.compress` context while a frame is read or a
    question is answered, and at no other time. Streams and chats that share it, also from several
    threads, take turns in the order of their calls.

    Args:
        model: a vision-language model that :func:`foveate.compress` takes.
        processor: its processor.
        policy: a policy or its spec, with a budget in tokens or bytes. What a rule says of the end
            of a prompt it says here between frames.
        words: what is read around the pixels; by default as the chat template has it.
        system: the system prompt; left out, the template's own. Not with ``words``.
        every: by how many pairs the heads outgrow the budget until they are compressed; left out it
            is the policy's own, or 256.
        keep_opening: whether the words before the first frame always stay, inside the budget.
        positions: "true" ones, which grow with the stream, also beyond what the model was trained
            for (the log, "foveate", says so once); or "reindexed": before they get there, gaps that
            forgotten tokens left are closed, and keys are turned accordingly.
        offload: keeps every frame elsewhere as well, and puts those back that a question is about;
            left out, what leaves memory is gone.
        template_kwargs: for ``apply_chat_template``: ``{"enable_thinking": False}``. Not with
            ``words``.
        **generate: arguments of ``model.generate`` for every answer, such as
            ``max_new_tokens=64``; a call's own arguments override them.

    Raises:
        InvalidBudget: a budget that is a share.
        InvalidParameter: an unknown argument, or one that ``words`` makes pointless; a policy that
            needs its whole prompt, or cannot keep an opening; positions of another name; with
            ``offload``, reindexed ones, or a policy that compresses while it answers or has a prune
            stage.
        InvalidInput: the chat template does not tell the words of a frame, or another stream uses
            the folder of ``offload``.
        UnsupportedModel: as for ``compress``; from the first frame on, where positions are
            reindexed or ``offload`` is given, a model that turns keys in a way that is not known.
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
        if positions not in ("true", "reindexed"):
            raise InvalidParameter(f'positions={positions!r}: give "true" or "reindexed".')
        made = endless(policy_of(policy), every)
        if offload is not None:
            offload.check(made, positions)
        checked = Session(model, made, tokenizer=processor, queued=True).model
        _check(checked, processor, generate, "Stream(...)", _OWN, complete=False)
        self.words = _words(processor, words, system, template_kwargs or {})
        self._opening = of_text(checked, processor, self.words.opening, first=True)
        if keep_opening and self._opening.shape[1]:
            made = _keeping(made, self._opening.shape[1])
        session = Session(model, made, tokenizer=processor, queued=True)
        self._start(session, processor, positions, None if offload is None else Offloaded(offload))
        self._defaults = dict(generate)
        if self._elsewhere is not None:
            self._elsewhere.claim()

    def _start(
        self, session: Session, processor: Any, positions: Positions, elsewhere: Offloaded | None
    ) -> None:
        self.model, self.processor, self.policy = session.model, processor, session.policy
        self._session = session
        self._cache: DynamicCache | None = None
        self._images = self._peak = 0
        self._interrupted = False
        self._bound = Bound(self.policy)
        self._places = Places(self.model, processor, positions, turns=elsewhere is not None)
        self._elsewhere = elsewhere

    def see(
        self, frames: Frames, time: int | float | Sequence[int | float] | None = None
    ) -> StreamHeld:
        """Read a frame, or a few at once.

        Args:
            frames: an image of any form (as in :meth:`foveate.Chat.say`), a list of images, a
                :class:`foveate.Clip`, or a processor's output of one chunk of video (``input_ids``
                of one row, pixels, grids), which is read as it is.
            time: seconds since the stream began, of the frame or of each, which become text in
                front of a frame; by default a clip's own times, and none for images.

        Returns:
            What is held now.

        Raises:
            InvalidInput: nothing to see, or times that do not fit.
            AlreadyCompressing: called from a callback of an answer of the same model; or the model
                is in a :func:`foveate.compress` context.
            InvalidBudget: a frame alone is more than ``offload`` may take; it has been read.
            CannotWrite: likewise, the folder of ``offload`` is full, or cannot be written to.
            UnsupportedCache: an earlier call was interrupted while the model read; load what was
                saved, or begin anew.
        """
        with enter(self.model, sys._getframe()):
            self._check()
            chunk = of_frames(self.model, self.processor, self.words, frames, time, self._images)
            self._places.find_out()
            with self._session as session:
                cache = self._cache = self._cache or self._begun(session)
                with self._consistent(cache):
                    made = self._read(session, cache, chunk)
                    self._places.keep(cache)
                    self._images += chunk.images
            self._bound.longest = max(self._bound.longest, chunk.tokens)
            self._peak = max(self._peak, bytes_of(self._cache))
            if self._elsewhere is not None:  # last: where it fails, the stream goes on without
                self._elsewhere.keep(made, chunk.image, chunk.spot, self._places.ways)
            return self.held

    def ask(self, question: str, **generate: Any) -> Answer:
        """Answer a question about what was seen so far.

        Args:
            question: in words.
            **generate: for the model's ``generate``: ``max_new_tokens`` (256 where nothing says
                otherwise), ``do_sample``, ``streamer``.

        Raises:
            NothingCompressed: no frame was seen yet.
            UnsupportedCache: a call of ``see`` was interrupted.
            InvalidInput: an argument that the stream sees to, several answers at once, or the file
                of an offloaded frame is missing or damaged.
            InvalidParameter: an argument that ``generate`` does not take.
            AlreadyCompressing: as ``see`` raises.
        """
        options = with_defaults(self._defaults, generate)
        _check(self.model, self.processor, options, "ask(...)", ("question",))
        with enter(self.model, sys._getframe()):
            branch = copy.deepcopy(self._seen())
            self._places.find_out()
            ids = of_question(self.model, self.processor, self.words, question)
            with self._session as session:
                if self._elsewhere is not None:
                    self._elsewhere.fetch(session, branch, ids, self._places.ways)
                return answer(session, self.processor, branch, ids, options)

    @property
    def fetched(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the frames, from 0, that each layer fetched for the latest question."""
        return () if self._elsewhere is None else self._elsewhere.fetched

    @property
    def held(self) -> StreamHeld:
        """What is held now; raises UnsupportedCache as ``see`` does."""
        self._check()
        if self._cache is None:
            return StreamHeld(0.0, 0, 0, 0, 0, 0)
        offloaded = 0 if self._elsewhere is None else self._elsewhere.nbytes
        layers = foveate_layers(self._cache)
        tokens, bound = tokens_of(layers), self._bound.bytes(layers)
        seen = layers[0].seen + known_state(self._cache).tokens.forgotten
        return StreamHeld(
            tokens, seen, self._images, bytes_of(self._cache), self._peak, bound, offloaded
        )

    def save(self, path: str | Path) -> Path:
        """Writes the stream to a safetensors file: whole, or not at all. Frames go on meanwhile.

        Raises:
            NothingCompressed: no frame was seen yet.
            UnsupportedCache: a call of ``see`` was interrupted; an earlier file stays as it is.
            InvalidInput: the file of an offloaded frame is missing or damaged.
            CannotWrite: the disk is full, or the place cannot be written to.
        """
        entries = {
            "images": self._images,
            "peak": self._peak,
            "longest": self._bound.longest,
            "positions": self._places.positions,
            "words": list(self.words),
            "generate": self._defaults,
        }
        with enter(self.model, sys._getframe()):
            seen = self._seen()
            return saved.save(
                Path(path), self._session, self.processor, seen, entries, self._elsewhere
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
        """Goes on with a stream that ``save`` wrote, in this or another process.

        Args:
            path: of the file, which holds the offloaded frames too.
            model: the model that read the stream.
            processor: its processor.
            folder: another folder for offloaded frames than the stream had.

        Raises:
            CacheMismatch: it was saved with another model or tokenizer.
            InvalidInput: the file is missing, damaged, or holds no stream, or another stream uses
                the folder.
            InvalidParameter: ``folder`` for a stream that does not offload.
            CannotWrite: the folder cannot be written to.
        """
        stream = cls.__new__(cls)
        made = policy_in(Path(path))
        session = Session(model, made, tokenizer=processor, queued=True)
        where = None if folder is None else Path(folder)
        with enter(session.model, sys._getframe()):
            cache, entries, elsewhere = saved.load(Path(path), session, processor, where)
        stream._start(session, processor, entries["positions"], elsewhere)
        stream._cache, stream._defaults = cache, entries.get("generate", {})
        stream.words, stream._images = Words(*entries["words"]), entries["images"]
        stream._opening = of_text(stream.model, processor, stream.words.opening, first=True)
        stream._peak, stream._bound.longest = entries["peak"], entries["longest"]
        return stream

    def close(self) -> None:
        """Lets go of what is held, here and elsewhere; the stream may begin anew."""
        if self._elsewhere is not None:
            self._elsewhere.close()
        emptied = self._elsewhere and Offloaded(self._elsewhere.how)
        self._start(self._session, self.processor, self._places.positions, emptied)

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise InvalidInput(
            "a stream cannot be copied or pickled, as its model would go along: use save() and "
            "Stream.load()."
        )

    def _begun(self, session: Session) -> DynamicCache:
        """The cache with the words before the first frame."""
        cache = begun(session.model, session.policy, session.link)
        self._places.note(cache)
        if self._opening.shape[1]:
            session.prefill(input_ids=self._opening, **{CACHE: cache})
            if self._elsewhere is not None:
                self._elsewhere.count(self._opening.shape[1])
        return cache

    def _read(self, session: Session, cache: DynamicCache, chunk: Chunk) -> Made:
        """Reads a chunk; what the model makes of it is kept elsewhere, if anything is."""
        elsewhere, made = self._elsewhere, Made()
        say_images(cache, (chunk.image, chunk.spot))
        with looked_at(cache, made if elsewhere else None):
            session.prefill(**chunk.inputs, **{CACHE: cache})
        layers, stay = foveate_layers(cache), None
        for layer in layers:  # its prompt never ends, so empty slots would stay, and count
            layer.settle()
        if layers[0].seen > max(layer.pairs.longest for layer in layers) + _FORGETS:
            stay = forget(cache)
        if elsewhere is not None:
            elsewhere.count(chunk.tokens)
            elsewhere.forget(stay)
        return made

    @contextmanager
    def _consistent(self, cache: DynamicCache) -> Iterator[None]:
        """A change of the cache with all that is counted of it. After an exception the stream goes
        on if the cache is as it was, and refuses everything otherwise.
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

    def _check(self) -> None:
        if self._interrupted:
            raise UnsupportedCache(
                "a call of see() was interrupted while the model read, so this stream's memory is "
                "incomplete. Load what was saved before (Stream.load), or close() the stream and "
                "begin anew."
            )

    def _seen(self) -> DynamicCache:
        self._check()
        if self._cache is None:
            raise NothingCompressed("this stream has seen no frame yet: call see(frame) first.")
        return self._cache


def _words(
    processor: Any, words: Words | None, system: str | None, template_kwargs: Mapping[str, Any]
) -> Words:
    """Return the text around pixels: given, or the chat template's."""
    if words is None:
        check_template_arguments(template_kwargs, processor)
        return Words.of(processor, system, **template_kwargs)
    if system is not None or template_kwargs:
        name = "template_kwargs" if system is None else "system"
        raise InvalidParameter(
            f"{name}=... is for the chat template, and words=... replaces it: write it into "
            "Words(opening=...), or leave words out."
        )
    return words


def _keeping(policy: Policy, opening: int) -> Policy:
    """The policy, which always keeps so many tokens at the beginning."""
    select: Any = policy.select
    if not hasattr(select, "sinks"):
        raise InvalidParameter(
            f"{select!r} cannot keep the words before the first frame. Use a selection with sinks, "
            "such as select=top_k(), or keep_opening=False."
        )
    return policy.but(select=replace(select, sinks=max(select.sinks, opening)))
