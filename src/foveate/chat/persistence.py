"""Files of chats: those of compressed caches, with the messages in an additional tensor."""

from __future__ import annotations

import copy
import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor
from transformers import DynamicCache

from foveate.chat.answering import Answerer, Conversation, TurnRecord
from foveate.chat.storage import trim
from foveate.chat.usage import Usage
from foveate.compression.composition import policy
from foveate.errors import InvalidInput
from foveate.hf import Session
from foveate.hf.attach.model_queue import enter
from foveate.hf.endless.rerotation import next_position
from foveate.hf.layer.support import known_state
from foveate.hf.model.devices import input_device
from foveate.hf.saving import file_checks
from foveate.policies.policy import Policy
from foveate.prompts.messages import Message, parts_of

_CHAT = "chat"
_BEFORE = "chat_before"
_POSITIONS = "chat_positions"
"""Notes of a cache: its chat, the file of the cache before the latest turn, and the positions of
its tokens if they are reindexed.
"""


def policy_in(path: Path) -> Policy:
    """Read the policy that the file's cache was compressed with."""
    return policy(file_checks.read(path).note["policy"])


def pack(entries: Mapping[str, Any]) -> UInt8[Tensor, "n"]:
    """Encode entries as JSON in a tensor of bytes, for the file of a cache.

    Raises:
        TypeError: a value that JSON cannot represent.
    """
    text = json.dumps(entries).encode()
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).clone()


def unpack(encoded: UInt8[Tensor, "n"]) -> dict[str, Any]:
    """Decode what ``packed`` encoded."""
    entries: dict[str, Any] = json.loads(bytes(encoded.cpu().tolist()))
    return entries


_SETTINGS = ("rewrites", "system", "keep_turns", "positions")


def save(path: Path, answerer: Answerer, now: Conversation, settings: Mapping[str, Any]) -> Path:
    """Write a conversation and the keyword arguments of its chat; raises InvalidInput if empty."""
    if now.cache is None:
        raise InvalidInput("this chat has no turn to save yet: call say() first.")
    generate = {**settings}
    template = generate.pop("template_kwargs")
    own = {name: generate.pop(name) for name in _SETTINGS}
    entries = {
        **own,
        "template": template,
        "generate": generate,
        "messages": [_without_pixels(message) for message in now.messages],
        "answer": now.answer,
        "told": now.text,
        "ids": now.ids[0].tolist(),
        "types": {name: types[0].tolist() for name, types in now.types.items()},
        "turns": [_entry(record) for record in now.turns],
    }
    try:
        encoded = pack(entries)
    except TypeError as error:
        raise InvalidInput(
            f"this chat cannot be written: {error}. Messages, template_kwargs and the arguments "
            "of generate in Chat(...) must be JSON values; pass other arguments to say() instead."
        ) from error
    cache, notes = _with_positions(now.cache), {_CHAT: encoded}
    latest = now.turns[-1] if now.turns else None
    if latest is not None and latest.before is not None and latest.full:
        with TemporaryDirectory() as folder:
            before = _with_positions(latest.before.cache)
            file = answerer.new_session().save(
                Path(folder, "before"), cache=before, tokenizer=answerer.processor
            )
            notes[_BEFORE] = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)
    known_state(cache).note(notes)
    return answerer.new_session().save(path, cache=cache, tokenizer=answerer.processor)


def load(path: Path, answerer: Answerer) -> tuple[Conversation, dict[str, Any]]:
    """Return the conversation of a file, and the keyword arguments of its chat."""
    with enter(answerer.model, sys._getframe()), answerer.new_session() as session:
        cache = _load_cache(session, path, answerer)
        stored = known_state(cache).take_note(_CHAT)
        file, before = known_state(cache).take_note(_BEFORE), None
        if file is not None:
            with TemporaryDirectory() as folder:
                Path(folder, "before").write_bytes(file.cpu().numpy().tobytes())
                before = _load_cache(session, Path(folder, "before"), answerer)
    if stored is None:
        raise InvalidInput(f"{str(path)!r} contains a cache and no chat: session.load reads it.")
    entries = unpack(stored)
    device = input_device(answerer.model)
    ids = torch.tensor([entries["ids"]], dtype=torch.long, device=device)
    types = {
        name: torch.tensor([row], dtype=torch.long, device=device)
        for name, row in entries["types"].items()
    }
    record = tuple(entries["messages"]), entries["answer"], entries["told"]
    # files of earlier versions lack some settings
    settings = {name: entries[name] for name in _SETTINGS if name in entries}
    settings |= {"template_kwargs": entries["template"], **entries.get("generate", {})}
    now = Conversation(*record, ids, types, cache)
    turns = [_record(entry) for entry in entries.get("turns", ())]
    if before is not None:
        first, start, (text, answer) = turns[-1].first, turns[-1].start, entries["turns"][-1][-1]
        earlier = {name: row[:, :start] for name, row in types.items()}
        state = Conversation(now.messages[:first], answer, text, ids[:, :start], earlier, before)
        turns[-1] = turns[-1]._replace(before=state)
    return replace(now, turns=tuple(turns)), settings


def _load_cache(session: Session, path: Path, answerer: Answerer) -> DynamicCache:
    cache = session.load(path, tokenizer=answerer.processor)
    trim(cache)  # loaded ragged pairs have spare room
    state = known_state(cache)
    if (positions := state.take_note(_POSITIONS)) is not None:
        state.update_tokens(position=positions)
        state.update_tokens(shift=next_position(cache) - positions.shape[1])
    return cache


def _with_positions(cache: DynamicCache | None) -> DynamicCache | None:
    """Return a copy of a cache, with a note of its tokens' positions if they are recorded."""
    copied = copy.deepcopy(cache)
    if copied is not None and (table := known_state(copied).tokens.position) is not None:
        known_state(copied).note({_POSITIONS: table})
    return copied


def _entry(record: TurnRecord) -> list[Any]:
    """Return a record as JSON values; options that JSON cannot represent are left out."""
    options = {name: value for name, value in record.options.items() if _is_json(value)}
    before = record.before and (record.before.text, record.before.answer)
    usage = dataclasses.asdict(record.usage)
    ids = record.ids.tolist()
    return [record.first, record.start, options, ids, record.ended, usage, before]


def _record(entry: Sequence[Any]) -> TurnRecord:
    first, start, options, ids, ended, usage, _ = entry
    answer = torch.tensor(ids, dtype=torch.long, device="cpu")
    return TurnRecord(first, start, options, answer, ended, Usage(**usage))


def _is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _without_pixels(message: Message) -> dict[str, Any]:
    parts = parts_of(message)
    if all(part["type"] == "text" for part in parts):
        return dict(message)
    texts_alone = [p if p["type"] == "text" else {"type": p["type"]} for p in parts]
    return {**message, "content": texts_alone}
