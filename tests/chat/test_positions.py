"""Positions without gaps: a chat goes on within the range of positions that its model knows."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

import foveate
from foveate.chat.history import next_position
from foveate.errors import InvalidParameter, UnsupportedModel
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.conformance.oracle import event_of, oracle
from tests.core.users import unchecked
from tests.jitter import WIDER
from tests.pairs import by_turns

from .conversations import TURNS, Record, image, joined
from .families import Talker, talker
from .test_history import assert_same

EXACT = 1e-5 + WIDER
FAMILIES = ["llava", "internvl", "qwen2_vl", "qwen3_vl"]
SPECS = ["snapkv:budget=30%,window=4", "adakv:budget=60,window=4"]
RANGE = 120


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that know a few positions, of which a quarter is for a question and its answer."""
    for name in FAMILIES:
        settings = talker(name).model.config.get_text_config()
        monkeypatch.setattr(settings, "max_position_embeddings", RANGE)


def chat_of(who: Talker, spec: str, **settings: Any) -> foveate.Chat:
    return foveate.Chat(who.model, who.processor, spec, positions="reindexed", **settings)


def true_positions(model: PreTrainedModel, chat: foveate.Chat, record: Record) -> Tensor:
    """The positions [axes, n] of all tokens in a conversation that is read at once."""
    ids = chat._now.ids
    rule = getattr(model.model, "get_rope_index", None)
    if rule is None:
        return torch.arange(ids.shape[1])[None]
    grids = joined(record.given)["image_grid_thw"]
    types = chat._now.types["mm_token_type_ids"]
    return rule(ids, mm_token_type_ids=types, image_grid_thw=grids)[0][-3:, 0]


def without_gaps(positions: Tensor, kept: Sequence[int]) -> Tensor:
    """Ranks of positions [axes, n] among those of the kept columns."""
    used = sorted({int(axis[column]) for axis in positions for column in kept})
    ranks = [
        [min(bisect_left(used, at), len(used) - 1) for at in axis.tolist()] for axis in positions
    ]
    return torch.tensor(ranks)


def kept_columns(kept: dict[int, Tensor]) -> list[int]:
    """Columns that some head of some layer keeps."""
    union = torch.stack([mask.flatten(0, 1).any(0) for mask in kept.values()]).any(0)
    return union.nonzero()[:, 0].tolist()


def rotate(model: PreTrainedModel, cache: Any, difference: Tensor) -> None:
    """Rotate the stock cache's keys with the model's own cosines and sines."""
    lm = model.model.language_model
    axes = difference[:, None] if len(difference) > 1 else difference
    for layer in cache.layers:
        cos, sin = lm.rotary_emb(layer.keys, axes)
        if cos.ndim == 4:  # transformers before 5.9 leaves the axes to the attention
            sections = 2 * lm.config.rope_parameters["mrope_section"]
            cos, sin = (
                torch.cat([m[i % 3] for i, m in enumerate(x.split(sections, dim=-1))], dim=-1)
                for x in (cos, sin)
            )
        first, second = layer.keys.chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        layer.keys = layer.keys * cos[:, None] + turned * sin[:, None]


class Walk:
    """A chat turn by turn: the columns that each turn ended at, and all kept at that time."""

    def __init__(self, who: Talker, chat: foveate.Chat):
        self.who, self.chat, self.record = who, chat, Record()
        self.ends, self.kept = [0], []
        with self.record.listening():
            for number in range(len(TURNS)):
                self.record.say(chat, number, who.eos if number % 2 else None)
                cache = chat._now.cache
                self.ends.append(foveate_layers(cache)[0].seen)
                self.kept.append(kept_columns(event_of(cache, now=True).kept))

    def moves(self) -> list[tuple[Tensor, Tensor]]:
        """Positions [axes, seen] in each turn, and how far earlier ones moved before it."""
        true = true_positions(self.who.model, self.chat, self.record)
        limit = RANGE - RANGE // 4
        positions, found = true[:, :0], []
        for number, (first, last) in enumerate(zip(self.ends, self.ends[1:], strict=False)):
            before, following = positions, int(positions.max()) + 1 if first else 0
            new = self.chat._now.turns[number].usage.read
            if first and following + new > limit:
                before = without_gaps(positions, self.kept[number - 1])
                following = int(before.max()) + 1
            difference = before - positions
            origin = int(true[:, :first].max()) + 1 if first else 0
            positions = torch.cat([before, true[:, first:last] - origin + following], dim=1)
            found.append((positions, difference))
        return found


@by_turns(name=FAMILIES, spec=SPECS)
def test_a_turn_reads_turned_keys_at_their_new_positions(name: str, spec: str, short: None) -> None:
    """The stock model's cache, its keys turned by the model's own code, evicted pairs masked."""
    who = talker(name)
    walk = Walk(who, chat_of(who, spec))
    now, record, cache = walk.chat._now, walk.record, None
    spans = zip(walk.ends, walk.ends[1:], walk.moves(), strict=False)
    for number, (first, last, (positions, moved)) in enumerate(spans):
        if cache is not None:
            rotate(who.model, cache, moved)
        at = positions[:, first:last]
        inputs = {k: v[:, first:last] for k, v in {"input_ids": now.ids, **now.types}.items()}
        inputs |= {**record.given[number], "position_ids": at[:, None] if len(at) > 1 else at}
        events = [e for e in record.events if e.end <= last]
        with torch.no_grad(), oracle(who.model, *events):
            out = who.model(**inputs, **{CACHE: cache}, use_cache=True)
        cache, mine = out.past_key_values, record.logits[number]
        start = record.starts[number] - 1 - first
        assert (out.logits[0, start : start + len(mine)] - mine).abs().max() <= 2 * EXACT
    assert sum(bool(moved.any()) for _, moved in walk.moves()) >= 2
    assert next_position(now) < true_positions(who.model, walk.chat, record).max()
    recorded = known_state(now.cache).tokens.position
    assert torch.equal(recorded.expand(len(positions), -1), positions)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_fresh_prefill_at_the_reindexed_positions_answers_the_same(
    name: str, short: None
) -> None:
    """In a model of one layer, keys depend on their tokens and positions alone."""
    model = zoo.fresh(name)
    text = model.config.get_text_config()
    lm = model.model.language_model
    lm.layers, text.num_hidden_layers, text.max_position_embeddings = lm.layers[:1], 1, RANGE
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    who = talker(name)._replace(model=model)
    walk = Walk(who, chat_of(who, SPECS[1]))
    positions, moved = walk.moves()[-1]
    assert bool(moved.any())
    now, record = walk.chat._now, walk.record
    end = positions.shape[1]
    inputs = {"input_ids": now.ids[:, :end], **{k: v[:, :end] for k, v in now.types.items()}}
    inputs |= joined(record.given)
    inputs["position_ids"] = positions[:, None] if len(positions) > 1 else positions
    with torch.no_grad(), oracle(model, *record.events):
        logits = model(**inputs).logits[0]
    start, mine = record.starts[-1] - 1, record.logits[-1]
    assert (logits[start : start + len(mine)] - mine).abs().max() <= EXACT


@by_turns(spec=["snapkv:budget=100%,window=4", SPECS[1]], keep=["0", "1"], back=["1", "3"])
def test_going_back_and_files_keep_the_positions(
    spec: str, keep: str, back: str, short: None, tmp_path: Path
) -> None:
    """Undo, retry, forks and files: the chat in which later turns were never said."""
    who, record, fresh = talker("qwen2_vl"), Record(), Record()
    chat, other = (chat_of(who, spec, keep_turns=int(keep)) for _ in range(2))
    turns = (0, 1, 2, 3, 5)  # the latest one has no image: files have no pixels
    for turn in turns:
        record.say(chat, turn)
    for turn in turns[: -int(back)]:
        fresh.say(other, turn)
    file = chat.save(tmp_path / "chat.safetensors")
    loaded = foveate.Chat.load(file, who.model, who.processor)
    assert_same(loaded.fork(), chat.fork())
    if int(keep):
        for same in (loaded, chat.fork()):
            record.of(same, 5, None, call="retry")
        torch.testing.assert_close(*record.logits[-2:], atol=EXACT, rtol=0)
    chat.undo(int(back))
    tables = [known_state(one._now.cache).tokens.position for one in (chat, other)]
    assert torch.equal(*tables)
    assert_same(chat, other)


def test_complete_lists_go_on_in_range(short: None) -> None:
    who = talker("llava")
    chats = chat_of(who, SPECS[1]), chat_of(who, SPECS[1])
    messages: list[dict[str, Any]] = []
    for turn, (text, images) in enumerate(TURNS):
        content = [{"type": "image", "image": image(i)} for i in images]
        messages.append({"role": "user", "content": [*content, {"type": "text", "text": text}]})
        reused = chats[0].reusable_tokens(messages)
        answer = chats[0].complete(messages, max_new_tokens=3)
        assert answer.usage.reused == reused
        assert (reused > 0) == (turn > 0)
        told = chats[1].say(text, images=[image(i) for i in images], max_new_tokens=3)
        assert answer.ids.tolist() == told.ids.tolist()
        messages.append({"role": "assistant", "content": answer.text})
    tables = [known_state(chat._now.cache).tokens.position for chat in chats]
    assert torch.equal(*tables)
    assert int(tables[0].max()) < tables[0].shape[1] - 20


def test_what_cannot_be_reindexed_is_refused() -> None:
    who, sliding = talker("llava"), talker("gemma3")
    with pytest.raises(UnsupportedModel, match=r'layers of a Gemma3.*Use positions="true"'):
        chat_of(sliding, SPECS[0])
    with pytest.raises(InvalidParameter, match="does not store them in full precision"):
        chat_of(who, "snapkv:budget=30%,store=kivi(bits=4)")
    with pytest.raises(InvalidParameter, match="positions='other'"), unchecked():
        foveate.Chat(who.model, who.processor, SPECS[0], positions="other")  # type: ignore[arg-type]


def test_the_warning_of_the_range_names_the_way_out(
    short: None, caplog: pytest.LogCaptureFixture
) -> None:
    who = talker("llava")
    with caplog.at_level(logging.WARNING, "foveate"):
        for positions in ("true", "reindexed"):
            chat = foveate.Chat(
                who.model, who.processor, "recent_frames:budget=30", positions=positions
            )
            for turn in range(6):
                Record().say(chat, turn)
    assert ['positions="reindexed"' in r.getMessage() for r in caplog.records] == [True]
