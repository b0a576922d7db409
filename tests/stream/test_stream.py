"""A stream equals the full cache without what left it, can be left, and can be loaded."""

from __future__ import annotations

import pytest
import torch

import foveate
from foveate.errors import (
    CacheMismatch,
    InvalidBudget,
    InvalidInput,
    InvalidParameter,
    NothingCompressed,
)
from foveate.hf.endless.endless import END
from foveate.hf.layer.support import foveate_layers, known_state
from foveate.hf.model.internals import CACHE
from foveate.stream import Stream, Words
from foveate.stream import stream as module
from tests import zoo
from tests.answers import DRAWN
from tests.conformance.compare import TOLERANCE
from tests.conformance.oracle import oracle
from tests.core.users import unchecked
from tests.stream import tiny
from tests.stream.watching import logits_of, watched

FRAMES = 14
ASKED = {"max_new_tokens": 3, "do_sample": False, "logits_processor": DRAWN}
POLICIES = (
    "infinipotv:budget=24",
    "snapkv:budget=20,window=4",
    "adakv:budget=24,window=4",
    "hermes:budget=24,proxy=questions",
    "streammem:budget=24,prototypes=false,proxy=abc",
    "recent_frames:budget=50",
)


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Columns are counted anew as soon as a few are held by nobody."""
    monkeypatch.setattr(module, "_FORGETS", 4)


def drawn_frame(number):
    """Of sizes that differ, so that M-RoPE's positions do."""
    return tiny.frame(number, width=tiny.SIDE * (2 + number % 2))


class Letters:
    """What turns words into ids of the zoo's text."""

    def __call__(self, text, **options):
        return {"input_ids": [20 + ord(letter) % 50 for letter in text]}

    def decode(self, ids, **options):
        return " ".join(map(str, ids.tolist()))


LETTERS = Words("abc", "", " {question}")


def of_one_set(policy):
    """The policy, for a cache of latents: no budget is divided among heads."""
    return policy.replace("adakv", "snapkv") if isinstance(policy, str) else policy


def seen_by(family):
    """A model, how a stream of it begins, and its chunks."""
    if family == "qwen2_vl":
        return tiny.model(), (tiny.processor(), {}), [drawn_frame(i) for i in range(FRAMES)]
    model = zoo.fresh(family)
    chunks = [zoo.prompt(family, lengths=(14,), seed=seed) for seed in range(FRAMES)]
    return model, (Letters(), {"words": LETTERS}), chunks


def whole(stream, chunks, question):
    """The inputs that the model was given, all of them, and where each pass ended."""
    parts = [{"input_ids": stream._opening}]
    for number, chunk in enumerate(chunks):
        parts.append(module.of_frames(*stream_parts(stream), chunk, None, number).inputs)
    ids = module.of_text(*stream_parts(stream)[:2], stream.words.of_question(question), False)
    return [*parts, {"input_ids": ids}]


def stream_parts(stream):
    return stream.model, stream.processor, stream.words


def full_cache(model, parts, answered, events, hidden=None):
    """The logits after every part and every token of the answer, where events hide columns."""
    places = positions(model, parts, answered)
    steps = [*parts, *({"input_ids": ids[None, None]} for ids in answered[:-1])]
    logits, cache, seen = [], None, 0
    with oracle(model, *events, hidden=hidden), torch.no_grad():
        for step in steps:
            end = seen + step["input_ids"].shape[1]
            given = {k: x for k, x in step.items() if k != "attention_mask"}
            given["position_ids"] = places[..., seen:end]
            given |= {} if cache is None else {CACHE: cache}
            out = model(**given, use_cache=True)
            cache, seen = out.past_key_values, end
            logits.append(out.logits[0, -1])
    return logits


def positions(model, parts, answered):
    """Of the whole conversation, read at once."""
    ids = torch.cat([*(part["input_ids"] for part in parts), answered[None]], dim=1)
    if not hasattr(model.model, "get_rope_index"):
        return torch.arange(ids.shape[1])[None]
    grids = torch.cat([part["image_grid_thw"] for part in parts if "image_grid_thw" in part])
    types = (ids == model.config.image_token_id).int()
    return model.model.get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=grids)[0]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("family", ["qwen2_vl", "llava", "llava_deepseek"])
def test_it_equals_the_full_cache_without_what_left(family, policy, monkeypatch):
    model, (processor, how), chunks = seen_by(family)
    policy = of_one_set(policy) if family == "llava_deepseek" else policy
    stream = Stream(model, processor, policy, every=6, **how)
    seen = stream._opening.shape[1]
    with watched(monkeypatch, stream) as watch, logits_of(model) as ours:
        for chunk in chunks:
            held = stream.see(chunk)
            watch.note(held.seen)
            assert held.bytes <= held.peak <= held.bound
        answer = stream.ask("why", **ASKED)
    assert known_state(stream._cache).tokens.forgotten > held.seen // 3
    assert seen < held.tokens < held.seen / 2
    parts = whole(stream, chunks, "why")
    theirs = full_cache(model, parts, answer.ids, watch.events)
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=TOLERANCE)


def check_stock(model, shown, times, answer, ours):
    """The answer to "and now?", and its logits, are those of the stock model over all frames."""
    words = "".join(f"<{time:.1f} seconds>{tiny.QWEN_IMAGE}" for time in times)
    text = f"<|im_start|>user\n{words}and now?<|im_end|>\n<|im_start|>assistant\n"
    inputs = tiny.processor()(text=[text], images=shown)
    theirs = model.generate(**inputs, **ASKED, output_logits=True, return_dict_in_generate=True)
    assert answer.ids.tolist() == theirs.sequences[0, -3:].tolist()
    for a, b in zip(ours[-3:], theirs.logits, strict=True):
        torch.testing.assert_close(a, b[0], atol=1e-4, rtol=1e-4)


def test_nothing_is_lost_while_it_fits():
    """A budget that all frames fit: the answer of the whole conversation, read at once."""
    model, processor = tiny.model(), tiny.processor()
    shown = [drawn_frame(i) for i in range(3)]
    with Stream(model, processor, "infinipotv:budget=500") as stream, logits_of(model) as ours:
        stream.see(shown[:2], time=[0.0, 1.5])
        stream.see(shown[2], time=3)
        answer = stream.ask("and now?", **ASKED)
    check_stock(model, shown, (0.0, 1.5, 3.0), answer, ours)


def looks_on(stream, frames, asks):
    """The logits of all passes over some frames, where a question is asked after some of them."""
    with logits_of(stream.model) as found:
        for number in frames:
            stream.see(drawn_frame(number), time=float(number))
    if asks:
        stream.ask("what?", **ASKED)
    return found


@pytest.mark.parametrize("left", ["asked", "loaded", "shared"])
def test_it_goes_on_as_if_nothing_had_happened(left, tmp_path):
    model, processor = tiny.model(), tiny.processor()
    alone, other = (Stream(model, processor, "snapkv:budget=24,window=4", every=6) for _ in "ab")
    looks_on(alone, range(7), asks=False)
    looks_on(other, range(7), asks=left == "asked")
    if left == "loaded":
        file = other.save(tmp_path / "stream.safetensors")
        looks_on(other, range(50, 53), asks=False)
        other = Stream.load(file, model, processor)
        assert other.held._replace(bound=0) == alone.held._replace(bound=0)
    if left == "shared":
        with foveate.compress(model, "knorm:budget=50%"):
            model.generate(**zoo_like(processor), max_new_tokens=2, do_sample=False)
    for a, b in zip(*(looks_on(one, range(7, 12), False) for one in (alone, other)), strict=True):
        torch.testing.assert_close(a, b)
    texts = [one.ask("x", **ASKED).ids.tolist() for one in (alone, other)]
    assert texts[0] == texts[1]
    other.close()
    assert other.see(drawn_frame(0)).images == 1


def zoo_like(processor):
    return processor(text=[f"see {tiny.QWEN_IMAGE} this"], images=[drawn_frame(3)])


def test_a_file_of_another_tokenizer_is_refused(tmp_path):
    stream = Stream(tiny.model(), tiny.processor(), "snapkv:budget=24")
    stream.see(drawn_frame(0))
    path = stream.save(tmp_path / "stream.safetensors")
    other = tiny.Processor()
    other.tokenizer.add_tokens(["frame"])
    with pytest.raises(CacheMismatch, match="another tokenizer"):
        Stream.load(path, tiny.model(), other)


def test_the_words_before_the_first_frame_stay():
    stream = Stream(tiny.model(), tiny.processor(), "knorm:budget=16", every=1)
    other = Stream(tiny.model(), tiny.processor(), "knorm:budget=16", every=1, keep_opening=False)
    for number in range(9):
        stream.see(drawn_frame(number))
        other.see(drawn_frame(number))
    first = range(stream._opening.shape[1])
    for layer in foveate_layers(stream._cache):
        assert all(set(first) <= set(head.tolist()) for head in layer.pairs.columns[0])
    images = known_state(other._cache).images()[0]
    assert int((images < 0).sum()) < len(first)


def test_words_of_a_frame_belong_to_it():
    stream = Stream(tiny.model(), tiny.processor(), "infinipotv:budget=900")
    stream.see([drawn_frame(0), drawn_frame(1)], time=[0, 1])
    image, spot = (t[0, stream._opening.shape[1] :] for t in known_state(stream._cache).images())
    assert image.tolist() == sorted(image.tolist())
    for one, size in ((0, 4), (1, 6)):
        mine = spot[image == one].tolist()
        assert sorted(mine) == list(range(len(mine)))
        words = len("<0.0 seconds>") + 1 + one  # the first one's end stands before the second
        assert mine[words : words + size] == list(range(size))


@pytest.mark.parametrize(
    ("policy", "error", "match"),
    [
        ("snapkv:budget=20%", InvalidBudget, "share of a prompt that never ends"),
        ("kvzip:budget=64", InvalidParameter, "needs a prompt that ends"),
        ("prefixkv:budget=64", InvalidParameter, "needs a prompt that ends"),
    ],
)
def test_policies_that_need_an_end_are_refused(policy, error, match):
    with pytest.raises(error, match=match):
        Stream(tiny.model(), tiny.processor(), policy)


def test_every_is_a_number_of_pairs_that_has_an_effect():
    parts = tiny.model(), tiny.processor()
    for every in (0, -1, True, 2.5):
        with (
            pytest.raises(InvalidParameter, match=rf"every={every}: give an int from 1"),
            unchecked(),
        ):
            Stream(*parts, "snapkv:budget=24", every=every)


def test_what_is_no_frame_or_no_question_is_refused():
    stream = Stream(tiny.model(), tiny.processor(), "snapkv:budget=64")
    with pytest.raises(NothingCompressed, match="seen no frame"):
        stream.ask("what?")
    with pytest.raises(InvalidInput, match="there is no frame"):
        stream.see([])
    with pytest.raises(InvalidInput, match="1 frames have 2 times"):
        stream.see(drawn_frame(0), time=[0, 1])
    with pytest.raises(InvalidInput, match="one row of input_ids"):
        stream.see({"pixel_values": torch.zeros(1)})
    stream.see(drawn_frame(0))
    with pytest.raises(InvalidInput, match=r"num_beams=2.*one answer"):
        stream.ask("what?", num_beams=2)
    stream.close()
    assert stream.held.seen == 0
    assert "forward" not in vars(tiny.model())


class Numbering:
    """A processor whose template writes each image's number, from ``first`` on."""

    def __init__(self, first, alone=True):
        self.tokenizer, self.first, self.alone = Letters(), first, alone

    def apply_chat_template(self, messages, **options):
        parts = messages[-1]["content"]
        numbered = self.alone or len(parts) > 2
        return "".join(
            part["text"]
            if part["type"] == "text"
            else f"Image {i}: <image>"
            if numbered
            else "<image>"
            for i, part in enumerate(parts, self.first)
        )


def test_numbers_of_a_template_are_those_of_the_stream():
    for alone in (True, False):
        words = Words.of(Numbering(1, alone))
        assert words == Words("", "{time}Image {number}: <image>", "{question}")
    assert words.of_frame(3, 2) == "<2.0 seconds>Image 3: <image>"


def test_a_template_that_words_images_otherwise_asks_for_words():
    with pytest.raises(InvalidInput, match="text of a frame"):
        Stream(tiny.model(), Numbering(0), "snapkv:budget=64")


def test_a_prompt_without_an_end_is_no_number_that_a_file_may_hold():
    assert END < 2**31
