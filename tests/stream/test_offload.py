"""Frames that come back for a question: the branch equals the full cache, or the masked one."""

from __future__ import annotations

import copy
import logging
import multiprocessing
import os
import shutil
import warnings

import pytest
import torch

import foveate
from foveate.errors import CannotWrite, InvalidBudget, InvalidInput, InvalidParameter
from foveate.hf.model.internals import CACHE
from foveate.methods.kivi import Kivi
from foveate.stream import Offload, Stream
from foveate.stream import stream as module
from foveate.stream.offload import InFolder
from tests.conformance.compare import TOLERANCE
from tests.conformance.oracle import Event, oracle
from tests.core.users import unchecked
from tests.stream import tiny
from tests.stream.test_stream import (
    ASKED,
    check_stock,
    drawn_frame,
    of_one_set,
    positions,
    seen_by,
    whole,
)
from tests.stream.watching import logits_of, watched

ALL = 10**6


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Columns are counted anew as soon as a few are held by nobody."""
    monkeypatch.setattr(module, "_FORGETS", 4)


def at_the_question(stream, tokens, before):
    """What each layer sees then: what it held (``before``), and the frames that it fetched."""
    places = {frame.number: frame.tokens for frame in stream._offloaded.frames}
    kept = {}
    for (index, mask), numbers in zip(before.kept.items(), stream.fetched, strict=True):
        mask = mask.clone()
        for number in numbers:
            mask[:, :, places[number]] = True
        kept[index] = mask
    return Event(tokens, kept)


def as_read_and_then(model, parts, answered, events, seen):
    """The logits after the question and each token of the answer, which see ``seen`` of a full
    cache whose parts saw what ``events`` left them.
    """
    places = positions(model, parts, answered)
    steps = [*parts, *({"input_ids": ids[None, None]} for ids in answered[:-1])]
    logits, cache, end = [], None, 0
    for number, step in enumerate(steps):
        start, end = end, end + step["input_ids"].shape[1]
        given = {k: x for k, x in step.items() if k != "attention_mask"}
        given["position_ids"] = places[..., start:end]
        given |= {} if cache is None else {CACHE: cache}
        asked = number >= len(parts) - 1
        with oracle(model, *([seen] if asked else events)), torch.no_grad():
            out = model(**given, use_cache=True)
        cache = out.past_key_values
        logits += [out.logits[0, -1]] * asked
    return logits


@pytest.mark.parametrize("family", ["qwen2_vl", "llava", "llava_deepseek"])
@pytest.mark.parametrize(
    ("policy", "fetch"),
    [
        ("infinipotv:budget=24", ALL),
        ("infinipotv:budget=24", 3),
        ("adakv:budget=24,window=4", 3),
        (foveate.snapkv(budget=24, window=4).but(store=Kivi(group=1, residual=3)), 2),
    ],
)
def test_a_question_sees_what_was_fetched(family, policy, fetch, monkeypatch):
    """What was read sees what was held then; the question sees what came back beside it."""
    model, (processor, how), chunks = seen_by(family)
    policy = of_one_set(policy) if family == "llava_deepseek" else policy
    stream = Stream(model, processor, policy, every=6, offload=Offload(fetch=fetch), **how)
    with watched(monkeypatch, stream) as watch, logits_of(model) as ours:
        for chunk in chunks:
            held = stream.see(chunk)
            watch.note(held.seen)
        read = len(ours)
        answer = stream.ask("why", **ASKED)
    assert watch.true.tolist() == stream._offloaded.columns.tolist()
    assert min(map(len, stream.fetched)) > 0
    assert max(map(len, stream.fetched)) <= fetch
    seen = at_the_question(stream, held.seen, watch.events[-1])
    assert all(mask.all() for mask in seen.kept.values()) == (fetch == ALL)
    parts = whole(stream, chunks, "why")
    theirs = as_read_and_then(model, parts, answer.ids, watch.events, seen)
    for a, b in zip(ours[read + 1 :], theirs, strict=True):  # the question is read twice
        torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=TOLERANCE)


def test_with_all_fetched_one_layer_answers_as_the_full_cache(tmp_path):
    """The pairs of a first layer follow from tokens alone, whatever was held as they were read."""
    torch.manual_seed(0)
    model = type(tiny.model())(tiny.config(layers=1)).float().eval()
    processor, shown = tiny.processor(), [drawn_frame(number) for number in range(9)]
    for folder in (None, tmp_path / "frames"):
        offload = Offload(fetch=ALL, folder=folder)
        stream = Stream(model, processor, "infinipotv:budget=20", every=4, offload=offload)
        with logits_of(model) as ours:
            for number, one in enumerate(shown):
                stream.see(one, time=float(number))
            answer = stream.ask("and now?", **ASKED)
        assert sum(map(len, stream.fetched)) > 5
        check_stock(model, shown, range(9), answer, ours)
        stream.close()
    assert list(folder.iterdir()) == []


def test_a_loaded_stream_has_what_was_elsewhere(tmp_path):
    model, processor = tiny.model(), tiny.processor()
    how = Offload(fetch=2, most="1MB")
    stream = Stream(model, processor, "snapkv:budget=24,window=4", every=6, offload=how)
    for number in range(8):
        stream.see(drawn_frame(number))
    again = Stream.load(stream.save(tmp_path / "stream.safetensors"), model, processor)
    assert again.held._replace(bound=0) == stream.held._replace(bound=0)
    for number in range(8, 11):
        for one in (stream, again):
            one.see(drawn_frame(number))
    found = [one.ask("where?", **ASKED).ids.tolist() for one in (stream, again)]
    assert found[0] == found[1]
    assert stream.fetched == again.fetched
    assert {len(numbers) for numbers in stream.fetched} == {2}


def test_what_is_kept_elsewhere_is_bounded_and_what_is_held_is_as_without(caplog):
    model, processor = tiny.model(), tiny.processor()
    pair = 2 * 16 * 4  # bytes: key and value, float32
    tokens = len("<0.0 seconds>") + 6
    frame = 3 * 2 * (tokens * pair + 16 * 4)  # layers, heads; and their mean keys
    plain = Stream(model, processor, "infinipotv:budget=24", every=6)
    stream = Stream(
        model, processor, "infinipotv:budget=24", every=6, offload=Offload(most=f"{3 * frame}B")
    )
    with caplog.at_level(logging.WARNING, "foveate"):
        for number in range(6):
            for one in (plain, stream):
                held = one.see(tiny.frame(number), time=float(number))
    assert held.offloaded == 3 * frame
    assert caplog.text.count("the oldest are deleted") == 1
    assert held._replace(offloaded=0) == plain.held
    stream.ask("what?", **ASKED)
    assert set().union(*stream.fetched) <= {3, 4, 5}
    assert plain.fetched == ()


def test_the_frames_most_like_the_question_come_back():
    """By the dot product of mean query and mean key, layer by layer, as before any rotation."""
    model, how = tiny.model(), {"offload": Offload(fetch=2), "every": 1}
    stream = Stream(model, tiny.processor(), "recent_frames:budget=30,frames=1", **how)
    stream._positions.find_ways()
    made, hooks = {"q": [], "k": []}, []
    for layer in model.model.language_model.layers:
        for name, held in made.items():
            project = getattr(layer.self_attn, f"{name}_proj")
            note = lambda _, __, out, held=held: held.append(out[0].unflatten(-1, (-1, 16)))  # noqa: E731
            hooks.append(project.register_forward_hook(note))
    frames = []
    for number in range(7):
        stream.see(drawn_frame(number))
        frames.append(made["k"][-3:])
    made["q"].clear()
    stream.ask("where?", **ASKED)
    for hook in hooks:
        hook.remove()
    for ordinal, numbers in enumerate(stream.fetched):
        asked = made["q"][ordinal].mean(0).view(2, 2, 16).mean(1)
        alike = [float((of[ordinal].mean(0) * asked).sum()) for of in frames[:-1]]
        assert numbers == tuple(sorted(torch.tensor(alike).topk(2).indices.tolist()))


def test_what_does_not_go_together_is_refused(tmp_path):
    parts = tiny.model(), tiny.processor()
    with pytest.raises(InvalidBudget, match="'20%' is no number of bytes"):
        Offload(most="20%")
    with pytest.raises(InvalidParameter, match="fetch=0"):
        Offload(fetch=0)
    with pytest.raises(InvalidParameter, match="true positions"):
        Stream(*parts, "snapkv:budget=24", positions="reindexed", offload=Offload())
    with pytest.raises(InvalidParameter, match="compresses during answers"):
        Stream(*parts, "h2o:budget=24,when=over_budget", offload=Offload())
    stream = Stream(*parts, "snapkv:budget=24", offload=Offload(most="100B"))
    with pytest.raises(InvalidBudget, match=r"a frame takes \d+ bytes"):
        stream.see(drawn_frame(0))
    assert stream.held.images == 1
    assert stream.ask("what?", **ASKED).ids.shape == (3,)


# ------------------------------------------------------------------- folders


def offloading(folder, frames=4, **how):
    """A stream that has seen some frames, which are all in a folder."""
    how = {"fetch": 2, "folder": folder} | how
    stream = Stream(
        tiny.model(), tiny.processor(), "snapkv:budget=24,window=4", every=6, offload=Offload(**how)
    )
    for number in range(frames):
        stream.see(drawn_frame(number))
    return stream


def test_a_folder_belongs_to_one_stream_until_it_is_closed(tmp_path):
    stream = offloading(tmp_path / "frames")
    with pytest.raises(InvalidInput, match=r"another stream .*frames.*close that stream, or give"):
        offloading(tmp_path / "frames", frames=0)
    with pytest.raises(InvalidInput, match="cannot be copied"):
        copy.deepcopy(stream._offloaded)
    stream.close()
    other = offloading(str(tmp_path / "frames"))
    with pytest.raises(InvalidInput, match="another stream"):
        stream.see(drawn_frame(0))
    other.ask("what?", **ASKED)


def killed(folder):
    """Writes a frame, and is gone before anything is cleared up."""
    InFolder(folder).put(7, {"k.0": torch.zeros(1)})
    os._exit(1)


def test_a_folder_of_a_process_that_was_killed_is_taken_over(tmp_path):
    """The system lets go of its lock; its frames are of no use to others."""
    folder = tmp_path / "frames"
    process = multiprocessing.get_context("fork").Process(target=killed, args=(folder,))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the threads that others left
        process.start()
    process.join()
    assert process.exitcode == 1
    assert (folder / "frame-00000007.safetensors").exists()
    stream = offloading(folder)
    assert len(list(folder.glob("frame-*"))) == 4
    stream.close()
    assert list(folder.iterdir()) == []


def deleted(folder, frame):
    shutil.rmtree(folder)


def cut(folder, frame):
    frame.write_bytes(frame.read_bytes()[:100])


def flipped(folder, frame):
    content = bytearray(frame.read_bytes())
    content[-1] ^= 1
    frame.write_bytes(content)


def of_another(folder, frame):
    shutil.copy(folder / "frame-00000001.safetensors", frame)


@pytest.mark.parametrize("damage", [deleted, cut, flipped, of_another])
def test_a_frame_that_is_missing_or_damaged_is_named_and_nothing_is_saved(damage, tmp_path):
    stream = offloading(tmp_path / "frames", fetch=ALL)
    kept = stream.save(tmp_path / "stream.safetensors").read_bytes()
    damage(tmp_path / "frames", tmp_path / "frames" / "frame-00000000.safetensors")
    with pytest.raises(InvalidInput, match=r"frame-00000000.safetensors.*Load the stream from its"):
        stream.ask("what?", **ASKED)
    with pytest.raises(InvalidInput, match=r"frame-00000000.safetensors"):
        stream.save(tmp_path / "stream.safetensors")
    assert (tmp_path / "stream.safetensors").read_bytes() == kept
    if damage is deleted:
        with pytest.raises(CannotWrite, match="frames"):
            stream.see(drawn_frame(4))
    stream.close()


def test_a_stream_is_loaded_into_another_folder(tmp_path):
    stream = offloading(tmp_path / "frames")
    parts = stream.save(tmp_path / "stream.safetensors"), tiny.model(), tiny.processor()
    with pytest.raises(InvalidInput, match="another stream"):
        Stream.load(*parts)
    again = Stream.load(*parts, folder=tmp_path / "moved")
    answers = [each.ask("what?", **ASKED).ids.tolist() for each in (stream, again)]
    assert answers[0] == answers[1]
    stream.close()
    third = Stream.load(again.save(tmp_path / "second.safetensors"), *parts[1:], folder=tmp_path)
    assert third.held.images == 4
    without = Stream(*parts[1:], "snapkv:budget=24")
    without.see(drawn_frame(0))
    path = without.save(tmp_path / "without.safetensors")
    with pytest.raises(InvalidParameter, match=r"folder='.*moved': .* saved without offload"):
        Stream.load(path, *parts[1:], folder=tmp_path / "moved")


def test_a_folder_that_is_no_path_is_refused():
    with pytest.raises(InvalidParameter, match="folder=3: give a path"), unchecked():
        Offload(folder=3)
