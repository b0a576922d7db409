"""Videos, streamed answers, follow-up questions, and what is left of each frame."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from transformers import TextStreamer

import foveate
from foveate.errors import InvalidInput, NothingCompressed
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.stream import Stream, Words
from foveate.stream import stream as module
from foveate.stream.reading import parts_of
from tests.stream import tiny
from tests.stream.test_stream import ASKED, Letters, drawn_frame, seen_by
from tests.stream.watching import logits_of

ROOMY = "infinipotv:budget=5000"


def streams(policy, count=2, **more):
    return [Stream(tiny.model(), tiny.processor(), policy, **more) for _ in range(count)]


def clip(frames):
    pixels = np.stack([np.asarray(tiny.frame(number)) for number in range(frames)])
    return foveate.Clip(pixels, np.arange(frames) / 2, 2.0, frames / 2)


def test_a_clip_is_read_a_few_frames_at_a_time():
    whole, parts = streams("snapkv:budget=40,window=4", every=6)
    film = clip(19)
    with logits_of(whole.model) as ours:
        whole.see(film, time=100)
    with logits_of(parts.model) as theirs:
        for start in (0, 8, 16):
            piece = slice(start, start + 8)
            parts.see(list(film.images[piece]), time=(film.times[piece] + 100).tolist())
    assert len(ours) == len(theirs) == 4  # one for the opening
    torch.testing.assert_close(ours, theirs)
    assert whole.held == parts.held
    assert whole.frames[-1].time == 109.0


def test_a_video_file_is_read_with_its_times(tmp_path):
    videos = pytest.importorskip("tests.videos")
    file = videos.film(tmp_path / "film.mp4")
    by_path, by_clip = streams(ROOMY)
    by_path.see(str(file), fps=5)
    by_clip.see(foveate.read_video(file, fps=5))
    assert by_path.held == by_clip.held
    assert [frame.time for frame in by_path.frames][:3] == [0.0, 0.2, 0.4]
    once = streams(ROOMY, 1)[0]
    once.see(file)
    assert [frame.time for frame in once.frames] == [0.0, 1.0, 2.0]
    with pytest.raises(InvalidInput, match="fps=2 is for the path of a video file"):
        once.see(tiny.frame(0), fps=2)
    with pytest.raises(InvalidInput, match=r"no\.mp4"):
        once.see(tmp_path / "no.mp4")


def test_an_answer_comes_in_pieces():
    (stream,) = streams("snapkv:budget=24,window=4", 1)
    with pytest.raises(NothingCompressed, match="seen no frame"):
        list(stream.ask("what?", stream=True))
    stream.see([drawn_frame(0), drawn_frame(1)])
    whole = stream.ask("what?", **ASKED)
    assert whole.usage.generated == len(whole.ids)
    assert 0 < whole.usage.read < whole.usage.reused == stream.held.seen
    assert 0 < whole.usage.stored_bytes <= whole.usage.peak_bytes
    pieces = stream.ask("what?", stream=True, **ASKED)
    assert "".join(pieces).strip() == whole.text
    assert pieces.answer.ids.tolist() == whole.ids.tolist()
    later = stream.ask("what?", stream=True, **ASKED)
    stream.see(drawn_frame(2))  # waits, and the answer does not know it
    assert later.answer.ids.tolist() == whole.ids.tolist()
    streamer = TextStreamer(tiny.processor().tokenizer)
    with pytest.raises(InvalidInput, match="exclude each other"):
        stream.ask("what?", stream=True, streamer=streamer)


def test_an_answer_that_nobody_reads_on_is_stopped():
    (stream,) = streams("snapkv:budget=24,window=4", 1)
    stream.see(drawn_frame(0))
    pieces = stream.ask("what?", stream=True, max_new_tokens=400, min_new_tokens=400)
    next(iter(pieces))
    for _ in pieces:
        break
    assert pieces.answer.ended == "stopped"
    assert len(pieces.answer.ids) < 400
    assert stream.ask("what?", **ASKED).ended in ("length", "eos")


@pytest.mark.parametrize("policy", ["snapkv:budget=24,window=4", "adakv:budget=24,window=4"])
@pytest.mark.parametrize("family", ["qwen2_vl", "llava"])
def test_frames_say_how_much_of_each_is_left(family, policy, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_FORGETS", 4)
    model, (processor, how), chunks = seen_by(family)
    stream = Stream(model, processor, policy, every=6, **how)
    assert stream.frames == ()
    sizes = {}
    for number, chunk in enumerate(chunks):
        before = stream.held.images
        seen = stream.held.seen or stream._opening.shape[1]
        stream.see(chunk, **({"time": 2 * number} if family == "qwen2_vl" else {}))
        if stream.held.images == before + 1:
            sizes[before] = stream.held.seen - seen
    images = known_state(stream._cache).images()[0][0]
    counts, heads = dict.fromkeys(range(stream.held.images), 0), 0
    for layer in foveate_layers(stream._cache):
        for head in layer.pairs.columns[0]:
            heads += 1
            for column in head.tolist():
                if column >= 0 and images[column] >= 0:
                    counts[int(images[column])] += 1
    assert {frame.number for frame in stream.frames} == {n for n, count in counts.items() if count}
    assert len(stream.frames) < stream.held.images
    for frame in stream.frames:
        assert frame.kept == pytest.approx(counts[frame.number] / heads / frame.tokens)
        assert 0 < frame.kept <= 1
        assert frame.tokens == sizes.get(frame.number, frame.tokens)
        assert frame.time == (2.0 * frame.number if family == "qwen2_vl" else None)
    assert len(stream._frames.entries) < stream.held.images  # what left is not remembered
    again = Stream.load(stream.save(tmp_path / "stream.safetensors"), model, processor)
    assert again.frames == stream.frames


def test_all_of_a_frame_is_left_while_it_fits():
    (stream,) = streams(ROOMY, 1)
    stream.see([drawn_frame(0), drawn_frame(1)], time=[0, 1.5])
    assert [(frame.time, frame.kept) for frame in stream.frames] == [(0.0, 1.0), (1.5, 1.0)]
    assert sum(frame.tokens for frame in stream.frames) + stream._opening.shape[1] == (
        stream.held.seen
    )


def test_a_follow_up_question_knows_the_earlier_ones(tmp_path):
    model, processor = tiny.model(), tiny.processor()
    (stream,) = streams(ROOMY, 1)
    stream.see(tiny.frame(0), time=0)
    first = stream.ask("what?", **ASKED)
    alone = stream.ask("and <|im_end|> why?", **ASKED)
    assert stream.ask("what?", **ASKED).ids.tolist() == first.ids.tolist()
    file = stream.save(tmp_path / "stream.safetensors")
    for asked in (stream, Stream.load(file, model, processor)):
        with logits_of(model) as ours:
            second = asked.ask("and why?", follow_up=True, **ASKED)
            third = asked.ask("really?", follow_up=True, **ASKED)
        tokenizer = processor.tokenizer
        text = f"<|im_start|>user\n<0.0 seconds>{tiny.QWEN_IMAGE}what?<|im_end|>\n"
        texts = [
            text + "<|im_start|>assistant\n",
            "<|im_end|>\n<|im_start|>user\nand why?<|im_end|>\n<|im_start|>assistant\n",
            "<|im_end|>\n<|im_start|>user\nreally?<|im_end|>\n<|im_start|>assistant\n",
        ]
        inputs = dict(processor(text=texts[:1], images=[tiny.frame(0)]))
        parts = [inputs["input_ids"]]
        for answered, words in ((first, texts[1]), (second, texts[2])):
            ids = tokenizer(words, return_tensors="pt", add_special_tokens=False)["input_ids"]
            parts += [answered.ids[None], ids]
        for end, answered, at in ((3, second, 0), (5, third, 3)):
            inputs["input_ids"] = torch.cat(parts[:end], dim=1)
            zeros = torch.zeros_like(inputs["input_ids"])
            types = inputs["mm_token_type_ids"]
            inputs["mm_token_type_ids"] = torch.cat([types, zeros[:, types.shape[1] :]], dim=1)
            theirs = model.generate(
                **inputs, **ASKED, output_logits=True, return_dict_in_generate=True
            )
            torch.testing.assert_close(ours[at], theirs.logits[0][0], atol=1e-4, rtol=1e-4)
            assert answered.ids.tolist() == theirs.sequences[0, zeros.shape[1] :].tolist()
    assert alone.ids is not None
    assert stream.ask("what?", **ASKED).ids.tolist() == first.ids.tolist()  # a branch, as ever


def test_a_follow_up_question_needs_words_for_it():
    model, (processor, how), chunks = seen_by("llava")
    stream = Stream(model, processor, "snapkv:budget=24", **how)
    stream.see(chunks[0])
    stream.ask("a", **ASKED)
    with pytest.raises(InvalidInput, match="follow-up question needs the text"):
        stream.ask("b", follow_up=True, **ASKED)
    words = Words("abc", "", " {question}", "|{question}")
    stream = Stream(model, Letters(), "snapkv:budget=24", words=words)
    stream.see(chunks[0])
    stream.ask("a", follow_up=True, **ASKED)  # the first one needs none
    assert len(stream.ask("b", follow_up=True, **ASKED).ids) == 3


@pytest.mark.parametrize("positions", ["true", "reindexed"])
def test_a_warning_of_positions_advises_what_helps(positions, caplog):
    advice = {"true": 'positions="reindexed"', "reindexed": "smaller budget"}
    (stream,) = streams("snapkv:budget=200,window=4", 1, positions=positions)
    stream._positions.limit = 30
    with caplog.at_level(logging.WARNING, "foveate"):
        for number in range(6):
            stream.see(drawn_frame(number))
    (warning,) = (r.getMessage() for r in caplog.records if "positions exceed" in r.getMessage())
    assert f"start a stream with a {advice[positions]}" in warning or (
        f"start a stream with {advice[positions]}" in warning
    )
    assert ("A smaller budget does not help" in warning) == (positions == "true")


def test_a_gif_with_fps_is_a_video(tmp_path):
    path = pytest.importorskip("tests.videos").film(tmp_path / "film.gif")
    read = [time for _, times in parts_of(path, None, 10) for time in times]
    assert read == pytest.approx([i / 10 for i in range(30)])
    assert list(parts_of(path, None, None)) == [(path, None)]
