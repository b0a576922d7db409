"""Positions without gaps: turned keys are those that the model makes at the new positions."""

from __future__ import annotations

import logging

import pytest
import torch

from foveate.errors import InvalidParameter
from foveate.hf.endless.endless import held_columns
from foveate.hf.endless.rerotation import next_position, reindex, ways_to_turn
from foveate.hf.layer.projection import with_latents
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.stream import Stream
from foveate.stream import stream as module
from tests.core.users import unchecked
from tests.stream.test_stream import ASKED, drawn_frame, of_one_set, seen_by, whole

FRAMES = 8


def keys_at(model, parts, places):
    """The first layer's keys of all tokens at positions [axes, n]: they depend on nothing else."""
    keys, start = [], 0
    for part in parts:
        end = start + part["input_ids"].shape[1]
        given = {k: x for k, x in part.items() if k != "attention_mask"}
        at = places[:, start:end]
        given["position_ids"] = at[:, None] if len(at) > 1 else at
        with torch.no_grad():
            layer = model(**given, use_cache=True).past_key_values.layers[0]
            keys.append(layer.values if with_latents(model) else layer.keys)
        start = end
    return torch.cat(keys, dim=2)


@pytest.mark.parametrize("family", ["qwen2_vl", "llava", "llava_deepseek"])
@pytest.mark.parametrize(
    "policy",
    [
        "streaming_llm:budget=24",
        "adakv:budget=24,window=4",
        "spatial.prune(keep=40%)+adakv:budget=14,window=2",
    ],
)
def test_turned_keys_are_those_at_the_new_positions(family, policy, monkeypatch):
    monkeypatch.setattr(module, "_FORGETS", 10**6)
    model, (processor, how), chunks = seen_by(family)
    policy = of_one_set(policy) if family == "llava_deepseek" else policy
    stream = Stream(model, processor, policy, every=1, **how)
    for chunk in chunks[:FRAMES]:
        stream.see(chunk)
    cache = stream._cache
    state, layers = known_state(cache), foveate_layers(cache)
    stays, before = held_columns(cache).nonzero()[:, 0], state.tokens.position
    reindex(cache, ways_to_turn(model, torch.arange(20, 60)[None]))
    assert next_position(cache) < int(before.max())
    places = state.tokens.position
    for axis, old in zip(places[:, stays], before[:, stays], strict=True):  # in order, as before
        assert torch.equal(axis.argsort(stable=True), old.argsort(stable=True))
    expected = keys_at(model, whole(stream, chunks[:FRAMES], "")[:-1], places)
    k, rotary, columns = layers[0].pairs.padded()
    k = rotary if with_latents(model) else k
    for head, of_head in enumerate(columns[0]):
        held = of_head >= 0
        theirs = expected[0, head, of_head[held].long()]
        torch.testing.assert_close(k[0, head, held], theirs, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("policy", ["snapkv:budget=24,window=30", "adakv:budget=24,window=4"])
def test_a_stream_goes_on_the_same_where_nothing_but_gaps_go(policy):
    """Attention goes by differences, and a gap that all that is held stands behind changes none."""
    model, (processor, _), chunks = seen_by("qwen2_vl")
    streams = [Stream(model, processor, policy, every=1, keep_opening=False) for _ in "ab"]
    for stream in streams:
        for chunk in chunks[:6]:
            stream.see(chunk)
    cache = streams[1]._cache
    state, ways = known_state(cache), ways_to_turn(model, streams[1]._opening)
    first = int(state.tokens.position.min())
    shifted = state.tokens.position - first
    reindex_by(cache, ways, shifted - state.tokens.position)
    for number in (7, 8):
        for stream in streams:
            stream.see(drawn_frame(number))
    a, b = (foveate_layers(stream._cache) for stream in streams)
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one.pairs.padded().v, other.pairs.padded().v)
    assert streams[0].ask("x", **ASKED).ids.tolist() == streams[1].ask("x", **ASKED).ids.tolist()


def reindex_by(cache, ways, difference):
    """Moves everything by one number."""
    state, move = known_state(cache), int(difference.unique())
    for layer, way in zip(foveate_layers(cache), ways, strict=True):
        layer.pairs.turn(lambda k, columns, way=way: way.by(k, difference[:, columns]))
        if (queries := layer.memory.queries) is not None:
            same = difference[:, :1, None, None].expand(-1, 1, 1, queries.shape[2])
            layer.memory.queries = way.by(queries, same)
    state.update_tokens(position=state.tokens.position + difference)
    extras = state.tokens.extras
    state.note({k: t + move for k, t in extras.items() if isinstance(t, torch.Tensor)})


def test_a_stream_that_is_reindexed_stays_in_range(caplog, tmp_path):
    model, (processor, _), chunks = seen_by("qwen2_vl")
    told = {}
    for positions in ("reindexed", "true"):
        stream = Stream(model, processor, "snapkv:budget=24,window=4", positions=positions, every=4)
        stream._positions.limit = 60
        with caplog.at_level(logging.WARNING, "foveate"):
            for chunk in chunks:
                stream.see(chunk)
        told[positions] = caplog.text.count("stream's positions exceed")
        caplog.clear()
        ends = next_position(stream._cache)
        assert (ends <= 60) == (positions == "reindexed")
        file = stream.save(tmp_path / f"{positions}.safetensors")
        again = Stream.load(file, model, processor)
        assert next_position(again._cache) == ends
        assert again.ask("x", **ASKED).ids.tolist() == stream.ask("x", **ASKED).ids.tolist()
    assert told == {"reindexed": 0, "true": 1}
    with pytest.raises(InvalidParameter, match="positions='other'"), unchecked():
        Stream(model, processor, "snapkv:budget=24", positions="other")
