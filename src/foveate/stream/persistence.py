"""Files of streams: those of compressed caches, with the stream's state in additional tensors."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import DynamicCache

from foveate.chat.persistence import pack, unpack
from foveate.errors import InvalidInput, InvalidParameter, NothingCompressed
from foveate.hf import Session
from foveate.hf.endless.endless import finish, go_on
from foveate.hf.layer.state import CacheState
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.stream.offload import Offload
from foveate.stream.offloaded import HOST, Offloaded

_ENTRIES, _IMAGE, _SPOT, _POSITIONS = "stream", "stream_image", "stream_spot", "stream_places"


def save(
    path: Path,
    session: Session,
    processor: Any,
    cache: DynamicCache,
    entries: Mapping[str, Any],
    offloaded: Offloaded | None,
) -> Path:
    """Write a stream's cache, ``entries`` and offloaded frames; its own cache does not change."""
    copied = copy.deepcopy(cache)
    state = known_state(copied)
    images = state.images()
    if images is None:
        raise NothingCompressed("this stream has seen no frame yet: call see(frame) first.")
    finish(copied)
    settings = None if offloaded is None else offloaded.settings.as_json
    numbers = pack(
        {
            **entries,
            "forgotten": state.tokens.forgotten,
            "shift": state.tokens.shift,
            "offload": settings,
        }
    )
    state.note({_ENTRIES: numbers, _IMAGE: images[0], _SPOT: images[1]})
    state.note({} if state.tokens.position is None else {_POSITIONS: state.tokens.position})
    state.note({} if offloaded is None else offloaded.tensors())
    return session.save(path, cache=copied, tokenizer=processor)


def load(
    path: Path, session: Session, processor: Any, folder: Path | None = None
) -> tuple[DynamicCache, dict[str, Any], Offloaded | None]:
    """Return the cache, entries and offloaded frames of a file; reading can go on.

    Frames go to ``folder``, or without it to the stream's own.
    """
    with session:
        cache = session.load(path, tokenizer=processor)
    state = known_state(cache)
    text, image, spot = (state.take_note(name) for name in (_ENTRIES, _IMAGE, _SPOT))
    if text is None or image is None or spot is None:
        raise InvalidInput(f"{str(path)!r} contains a cache and no stream: session.load reads it.")
    entries = unpack(text)
    if image.shape[1] != foveate_layers(cache)[0].seen:
        raise InvalidInput(
            f"{str(path)!r} was saved after an interrupted call of see(), and cannot be used. Load "
            "an earlier file, or start a new stream."
        )
    state.update_tokens(forgotten=entries["forgotten"], shift=entries["shift"])
    state.update_tokens(position=state.take_note(_POSITIONS))
    go_on(cache, (image, spot))
    for layer in foveate_layers(cache):
        if (queries := layer.memory.queries) is not None:
            layer.memory.images = image[:, -queries.shape[2] :]
    return cache, entries, _restore_offloaded(state, entries.get("offload"), folder)


def _restore_offloaded(
    state: CacheState, settings: Mapping[str, Any] | None, folder: Path | None
) -> Offloaded | None:
    """Return the offloaded frames of a file, or None."""
    names = [name for name in state.tokens.extras if name.startswith(HOST)]
    tensors = {name: state.take_note(name) for name in names}
    if settings is None:
        if folder is not None:
            raise InvalidParameter(
                f"folder={str(folder)!r}: this stream was saved without offload=, so it has no "
                "frames for a folder. Leave folder out."
            )
        return None
    offload = Offload.of(settings)
    offloaded = Offloaded(offload if folder is None else replace(offload, folder=folder))
    offloaded.refill(tensors)
    return offloaded
