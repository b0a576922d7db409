"""``foveate.Stream``: a video without an end, in a cache that grows no further."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers import DynamicCache

from foveate.backends.hf import Session, compress
from foveate.backends.hf.endless import begun, endless, forget, say_images
from foveate.backends.hf.fetched import Made, looked_at
from foveate.backends.hf.internals import CACHE
from foveate.backends.hf.support import foveate_layers, known_state
from foveate.chat.asking import Answer, check
from foveate.chat.held import bytes_of, tokens_of
from foveate.chat.saved import policy_in
from foveate.core.composition import policy as policy_of
from foveate.core.policy import Policy
from foveate.errors import InvalidParameter, NothingCompressed
from foveate.stream import saved
from foveate.stream.answering import answer, fetch
from foveate.stream.elsewhere import Offloaded
from foveate.stream.held import Bound, StreamHeld
from foveate.stream.offload import Offload
from foveate.stream.places import Places, Positions
from foveate.stream.reading import Chunk, Frames, of_frames, of_question, of_text
from foveate.stream.words import Words

_FORGETS = 256  # columns that nobody holds, until they are counted no more


class Stream(AbstractContextManager["Stream"]):
    """Frames go in one after the other, for as long as there are any; questions are answered on a
    branch, and the stream goes on as if nobody had asked.

    Between frames what is held is compressed as the policy says, so memory and the time of a frame
    stay the same. The model is in a :func:`foveate.compress` block while a frame is read or a
    question is answered, and at no other time; several streams may share it, one call at a time.

    Args:
        model: a vision-language model that :func:`foveate.compress` takes.
        processor: its processor.
        policy: a policy or its spec, with a budget in tokens or bytes. What a rule says of the end
            of a prompt it says here between frames.
        words: what is read around the pixels; by default as the chat template has it.
        system: the system prompt; left out, the template's own.
        every: by how many pairs the heads outgrow the budget until they are compressed; left out it
            is the policy's own, or 256.
        keep_opening: whether the words before the first frame always stay, inside the budget.
        positions: "true" ones, which grow with the stream, also beyond what the model was trained
            for (the log, "foveate", says so once); or "reindexed": before they get there, gaps that
            forgotten tokens left are closed, and keys are turned accordingly.
        offload: keeps every frame elsewhere as well, and puts those back that a question is about;
            left out, what leaves memory is gone.

    Raises:
        InvalidBudget: a budget that is a share.
        InvalidParameter: a policy that needs its whole prompt, or cannot keep an opening; positions
            of another name; with ``offload``, reindexed ones, or a policy that compresses while it
            answers or has a prune stage.
        InvalidInput: the chat template does not tell the words of a frame.
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
    ):
        if positions not in ("true", "reindexed"):
            raise InvalidParameter(f'positions={positions!r}: give "true" or "reindexed".')
        self.words = Words.of(processor, system) if words is None else words
        made = endless(policy_of(policy), every)
        if offload is not None:
            offload.check(made, positions)
        checked = compress(model, made, tokenizer=processor).model
        self._opening = of_text(checked, processor, self.words.opening, first=True)
        if keep_opening and self._opening.shape[1]:
            made = _keeping(made, self._opening.shape[1])
        self._start(compress(model, made, tokenizer=processor), processor, positions, offload)

    def _start(
        self, session: Session, processor: Any, positions: Positions, offload: Offload | None
    ) -> None:
        self.model, self.processor, self.policy = session.model, processor, session.policy
        self._session = session
        self._cache: DynamicCache | None = None
        self._images = self._peak = 0
        self._bound = Bound(self.policy)
        self._places = Places(self.model, processor, positions, turns=offload is not None)
        self._elsewhere = None if offload is None else Offloaded(offload)

    def see(
        self, frames: Frames, time: int | float | Sequence[int | float] | None = None
    ) -> StreamHeld:
        """Reads a frame, or a few at once.

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
            InvalidBudget: a frame alone is more than ``offload`` may take; it has been read.
            CannotWrite: likewise, the folder of ``offload`` is full, or cannot be written to.
            UnsupportedCache: an earlier call was interrupted while the model read; load what was
                saved, or begin anew.
        """
        chunk = of_frames(self.model, self.processor, self.words, frames, time, self._images)
        self._places.find_out()
        with self._session as session:
            cache = self._cache = self._cache or self._begun(session)
            made = self._read(session, cache, chunk)
        self._places.keep(cache)
        self._images += chunk.images
        self._bound.longest = max(self._bound.longest, chunk.tokens)
        self._peak = max(self._peak, bytes_of(self._cache))
        if self._elsewhere is not None:  # last: where it fails, the stream goes on without
            self._elsewhere.keep(made, chunk.image, chunk.spot, self._places.ways)
        return self.held

    def ask(self, question: str, **generate: Any) -> Answer:
        """Answers a question about what was seen so far.

        Args:
            question: in words.
            **generate: for the model's ``generate``: ``max_new_tokens`` (256 where nothing says
                otherwise), ``do_sample``, ``streamer``.

        Raises:
            NothingCompressed: no frame was seen yet.
            InvalidInput: an argument that the stream sees to, or several answers at once.
        """
        check(self.model, generate, "a stream", "Leave it 1.")
        branch = copy.deepcopy(self._seen())
        self._places.find_out()
        ids = of_question(self.model, self.processor, self.words, question)
        with self._session as session:
            if self._elsewhere is not None:
                fetch(session, self._elsewhere, branch, ids, self._places.ways)
            return answer(session, self.processor, branch, ids, generate)

    @property
    def fetched(self) -> tuple[tuple[int, ...], ...]:
        """The numbers of the frames, from 0, that each layer fetched for the latest question."""
        return () if self._elsewhere is None else self._elsewhere.fetched

    @property
    def held(self) -> StreamHeld:
        """What is held now."""
        if self._cache is None:
            return StreamHeld(0.0, 0, 0, 0, 0, 0)
        offloaded = 0 if self._elsewhere is None else self._elsewhere.nbytes
        layers = foveate_layers(self._cache)
        tokens, bound = tokens_of(layers), self._bound.bytes(layers)
        seen = layers[0].seen + known_state(self._cache).forgotten
        return StreamHeld(
            tokens, seen, self._images, bytes_of(self._cache), self._peak, bound, offloaded
        )

    def save(self, path: str | Path) -> Path:
        """Writes the stream to a safetensors file: whole, or not at all. Frames go on meanwhile.

        Raises:
            NothingCompressed: no frame was seen yet.
            CannotWrite: the disk is full, or the place cannot be written to.
        """
        entries = {
            "images": self._images,
            "peak": self._peak,
            "longest": self._bound.longest,
            "positions": self._places.positions,
            "words": list(self.words),
        }
        return saved.save(Path(path), self._session, self._seen(), entries, self._elsewhere)

    @classmethod
    def load(cls, path: str | Path, model: nn.Module, processor: Any) -> Stream:
        """Goes on with a stream that ``save`` wrote, in this or another process.

        Raises:
            CacheMismatch: it was saved with another model.
            InvalidInput: the file is missing, damaged, or holds no stream.
        """
        stream = cls.__new__(cls)
        made = policy_in(Path(path))
        stream._start(compress(model, made, tokenizer=processor), processor, "true", None)
        stream._cache, entries, stream._elsewhere = saved.load(Path(path), stream._session)
        offloads = stream._elsewhere is not None
        stream._places = Places(stream.model, processor, entries["positions"], offloads)
        stream.words, stream._images = Words(*entries["words"]), entries["images"]
        stream._opening = of_text(stream.model, processor, stream.words.opening, first=True)
        stream._peak, stream._bound.longest = entries["peak"], entries["longest"]
        return stream

    def close(self) -> None:
        """Lets go of what is held, here and elsewhere; the stream may begin anew."""
        elsewhere = self._elsewhere
        if elsewhere is not None:
            elsewhere.close()
        how = None if elsewhere is None else elsewhere.how
        self._start(self._session, self.processor, self._places.positions, how)

    def __exit__(self, *error: object) -> None:
        self.close()

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

    def _seen(self) -> DynamicCache:
        if self._cache is None:
            raise NothingCompressed("this stream has seen no frame yet: call see(frame) first.")
        return self._cache


def _keeping(policy: Policy, opening: int) -> Policy:
    """The policy, which always keeps so many tokens at the beginning."""
    select: Any = policy.select
    if not hasattr(select, "sinks"):
        raise InvalidParameter(
            f"{select!r} cannot keep the words before the first frame. Use a selection with sinks, "
            "such as select=top_k(), or keep_opening=False."
        )
    return policy.but(select=replace(select, sinks=max(select.sinks, opening)))
