"""Streams in files: those of compressed caches, with what a stream knows in some tensors more."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import DynamicCache

from foveate.chat.saved import packed, unpacked
from foveate.errors import InvalidInput, InvalidParameter, NothingCompressed
from foveate.hf import Session
from foveate.hf.endless.endless import finish, go_on
from foveate.hf.layer.state import CacheState
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.stream.elsewhere import HOST, Offloaded
from foveate.stream.offload import Offload

_TOLD, _IMAGE, _SPOT, _PLACES = "stream", "stream_image", "stream_spot", "stream_places"


def save(
    path: Path,
    session: Session,
    processor: Any,
    cache: DynamicCache,
    entries: Mapping[str, Any],
    elsewhere: Offloaded | None,
) -> Path:
    """Writes what is held, here and elsewhere, and what was told of it; the stream's own cache
    stays as it is.
    """
    held = copy.deepcopy(cache)
    state = known_state(held)
    images = state.images()
    if images is None:
        raise NothingCompressed("this stream has seen no frame yet: call see(frame) first.")
    finish(held)
    how = None if elsewhere is None else elsewhere.how.as_json
    numbers = packed(
        {
            **entries,
            "forgotten": state.tokens.forgotten,
            "shift": state.tokens.shift,
            "offload": how,
        }
    )
    state.note({_TOLD: numbers, _IMAGE: images[0], _SPOT: images[1]})
    state.note({} if state.tokens.position is None else {_PLACES: state.tokens.position})
    state.note({} if elsewhere is None else elsewhere.tensors())
    return session.save(path, cache=held, tokenizer=processor)


def load(
    path: Path, session: Session, processor: Any, folder: Path | None = None
) -> tuple[DynamicCache, dict[str, Any], Offloaded | None]:
    """The cache of a file, whose prompt goes on, what was told of it, and what is elsewhere; frames
    go to ``folder`` instead of the stream's own.
    """
    with session:
        cache = session.load(path, tokenizer=processor)
    state = known_state(cache)
    text, image, spot = (state.take_note(name) for name in (_TOLD, _IMAGE, _SPOT))
    if text is None or image is None or spot is None:
        raise InvalidInput(f"{str(path)!r} holds a cache and no stream: session.load reads it.")
    entries = unpacked(text)
    if image.shape[1] != foveate_layers(cache)[0].seen:
        raise InvalidInput(
            f"{str(path)!r} was saved after a call of see() that was interrupted, and cannot be "
            "used. Load an earlier file, or begin the stream anew."
        )
    state.update_tokens(forgotten=entries["forgotten"], shift=entries["shift"])
    state.update_tokens(position=state.take_note(_PLACES))
    go_on(cache, (image, spot))
    for layer in foveate_layers(cache):
        if (queries := layer.memory.queries) is not None:
            layer.memory.images = image[:, -queries.shape[2] :]
    return cache, entries, _elsewhere(state, entries.get("offload"), folder)


def _elsewhere(
    state: CacheState, how: Mapping[str, Any] | None, folder: Path | None
) -> Offloaded | None:
    """Takes what a file has of frames elsewhere."""
    names = [name for name in state.tokens.extras if name.startswith(HOST)]
    tensors = {name: state.take_note(name) for name in names}
    if how is None:
        if folder is not None:
            raise InvalidParameter(
                f"folder={str(folder)!r}: this stream was saved without offload=, so it has no "
                "frames to put there. Leave folder out."
            )
        return None
    offload = Offload.of(how)
    offloaded = Offloaded(offload if folder is None else replace(offload, folder=folder))
    offloaded.refill(tensors)
    return offloaded
