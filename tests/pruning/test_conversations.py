"""Chats and streams whose images are pruned: the stock model, without what was dropped or left,
and with what took over others in its place.
"""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from PIL import Image

import foveate
from foveate.errors import InvalidParameter
from foveate.hf.layer.support import known_state
from foveate.stream import Offload, Stream
from tests import zoo
from tests.chat.conversations import TURNS, Record, joined
from tests.chat.families import PROCESSORS, talker
from tests.conformance.compare import TOLERANCE
from tests.pairs import by_turns
from tests.stream.test_stream import ASKED, full_cache, seen_by, soon, whole
from tests.stream.watching import logits_of, watched

from .compare import given, hidden_of, taking_over
from .screens import masked, tokens_left_out

__all__ = ["soon"]  # a fixture: columns are counted anew as soon as a few are held by nobody

CUTS = {
    "drawn": "random.prune(keep=30%)",
    "chosen while reading": "fastv.prune(layer=1,keep=30%)",
    "merged": "visionzip.prune(keep=50%,contextual=0.4)",
    "recycled": "sparsevlm.prune(at=1|2,keep=50%|20%)",
}


@by_turns(
    name=[name for name in PROCESSORS if name != "gemma3"],
    cut=CUTS,
    behind=["snapkv:budget=60%,window=4", "adakv:budget=60%,window=4", "h2o:budget=60%"],
    loaded={"at once": False, "loaded": True},
)
def test_a_chat_in_which_every_image_is_pruned(name, cut, behind, loaded, tmp_path):
    who, record = talker(name), Record()
    chat = foveate.Chat(who.model, who.processor, f"{cut}+{behind}")
    with record.listening(), taking_over(chat.policy.prune, torch.zeros(1, dtype=int)) as rows:
        for number in range(len(TURNS)):
            if loaded and number == 3:
                path = chat.save(tmp_path / "chat.safetensors")
                chat = foveate.Chat.load(path, who.model, who.processor)
            record.say(chat, number)
    hidden = hidden_of(chat._now.cache)
    with given(who.model, rows):
        assert record.differs(who, chat, masked=True, hidden=hidden) <= TOLERANCE
    assert record.differs(who, chat, masked=True) > 100 * TOLERANCE
    if rows:
        assert record.differs(who, chat, masked=True, hidden=hidden) > 10 * TOLERANCE


def painted(number, side):
    """A screen of nine squares in two colours, each of which becomes a visual token."""
    squares = torch.randint(0, 2, (3, 3), generator=torch.Generator().manual_seed(number))
    pixels = (200 * squares).repeat_interleave(side, 0).repeat_interleave(side, 1)
    return Image.fromarray(pixels.byte().numpy()).convert("RGB")


@pytest.mark.parametrize(("name", "side"), [("llava", 4), ("qwen2_vl", 8)])
def test_a_chat_about_screens_leaves_repeated_patches_out_of_every_turn(name, side):
    who, record = talker(name), Record()
    chat = foveate.Chat(who.model, who.processor, "pixelprune.prune+snapkv:budget=60%,window=4")
    with record.listening():
        for number, (text, images) in enumerate(TURNS):
            screens = [painted(image, side) for image in images]
            record.of(chat, number, None, text, images=screens)
    inputs = joined(record.given)
    left_out, hidden = tokens_left_out(name, inputs), hidden_of(chat._now.cache)
    visual = chat._now.ids[0] == zoo.IMAGE
    assert hidden[0][0, visual[: hidden[0].shape[1]]].tolist() == left_out
    assert 0 < sum(left_out) < len(left_out) == 36
    encoder = masked(who.model, inputs, left_out) if name == "qwen2_vl" else nullcontext()
    with encoder:
        assert record.differs(who, chat, masked=True, hidden=hidden) <= TOLERANCE
    assert record.differs(who, chat, masked=True) > 100 * TOLERANCE


@contextmanager
def dropped_by(stage, before):
    """Before which layer which columns of a stream are dropped, as the stage says; ``before``
    tells how many tokens are counted no more.
    """
    found, own = {}, type(stage).__call__

    def noting(self, tokens):
        chosen = own(self, tokens)
        gone = tokens.vision & ~chosen.goes_on
        found.setdefault(tokens.layer, []).append(tokens.pos[gone] + before())
        return chosen

    type(stage).__call__ = noting
    try:
        yield found
    finally:
        type(stage).__call__ = own


def hidden_in(dropped, layers, length):
    """Of each layer, which of so many columns it never computed."""
    hidden = {}
    for layer in layers:
        columns = [one for first, each in dropped.items() if first <= layer for one in each]
        hidden[layer] = torch.zeros(1, length, dtype=torch.bool)
        if columns:
            hidden[layer][0, torch.cat(columns)] = True
    return hidden


@by_turns(
    cut={**CUTS, "spaced": "spatial.prune(keep=40%)"},
    family=["llava", "qwen2_vl"],
    policy=[
        "snapkv:budget=20,window=4",
        "adakv:budget=24,window=4",
        "infinipotv:budget=24",
        "hermes:budget=24,proxy=questions",
        "streammem:budget=24,prototypes=false,proxy=abc",
    ],
    left={"": False, "loaded": True},
)
def test_a_stream_whose_frames_are_pruned(family, cut, policy, left, monkeypatch, tmp_path):
    model, (processor, how), chunks = seen_by(family)
    stream = Stream(model, processor, f"{cut}+{policy}", every=6, **how)
    at_hand = [stream]

    def forgotten():
        return known_state(at_hand[0]._cache).tokens.forgotten

    stage = stream.policy.prune
    with (
        watched(monkeypatch, stream) as watch,
        logits_of(model) as ours,
        taking_over(stage, lambda: torch.tensor([forgotten()])) as rows,
        dropped_by(stage, forgotten) as dropped,
    ):
        for number, chunk in enumerate(chunks):
            if left and number == 7:
                path = stream.save(tmp_path / "stream.safetensors")
                stream = watch.stream = at_hand[0] = Stream.load(path, model, processor)
            held = stream.see(chunk)
            watch.note(held.seen)
            assert held.bytes <= held.peak <= held.bound
        answer = stream.ask("why", **ASKED)
    parts = whole(stream, chunks, "why")
    length = sum(part["input_ids"].shape[1] for part in parts)
    hidden = hidden_in(dropped, watch.events[0].kept, length)
    with given(model, rows):
        theirs = full_cache(model, parts, answer.ids, watch.events, hidden=hidden)
    assert forgotten() > length // 4
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=TOLERANCE)


def test_frames_that_come_back_are_not_pruned():
    model, (processor, how), _ = seen_by("llava")
    with pytest.raises(InvalidParameter, match="offload"):
        Stream(model, processor, f"{CUTS['drawn']}+snapkv:budget=20", offload=Offload(), **how)
