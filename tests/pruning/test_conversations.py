"""Chats and streams whose images are pruned: the stock model, without what was dropped or left."""

import pytest
import torch

import foveate
from foveate.backends.hf.support import foveate_layers
from foveate.core.pruning import EnteringTokens
from foveate.core.spec import make_stage
from foveate.stream import Stream
from tests import zoo
from tests.chat.conversations import TURNS, Record
from tests.chat.families import PROCESSORS, talker
from tests.conformance.compare import TOLERANCE
from tests.stream.test_stream import ASKED, full_cache, seen_by, soon, whole
from tests.stream.watching import logits_of, watched

from .compare import hidden_of

__all__ = ["soon"]  # a fixture: columns are counted anew as soon as a few are held by nobody

CUTS = ("random.prune(keep=30%)", "fastv.prune(layer=1,keep=30%)")


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", [name for name in PROCESSORS if name != "gemma3"])
def test_a_chat_in_which_every_image_is_pruned(name, cut):
    who, record = talker(name), Record()
    chat = foveate.Chat(who.model, who.processor, f"{cut}+snapkv:budget=60%,window=4")
    with record.listening():
        for number in range(len(TURNS)):
            record.say(chat, number)
    hidden = hidden_of(chat._now.cache)
    assert record.differs(who, chat, masked=True, hidden=hidden) <= TOLERANCE
    assert record.differs(who, chat, masked=True) > 100 * TOLERANCE


def dropped_by_spacing(ids, keep):
    """Of a chunk's ids, those that are dropped; nothing else of it matters to that."""
    visual = ids == zoo.IMAGE
    tokens = EnteringTokens(
        layer=0,
        depth=3,
        hidden=torch.zeros(*ids.shape, 1),
        pos=torch.arange(ids.shape[1])[None],
        image=torch.where(visual, 0, -1),
        spot=torch.where(visual, visual.cumsum(-1) - 1, -1),
        given=visual.sum(-1),
    )
    return visual & ~make_stage("spatial_prune", {"keep": keep})(tokens).goes_on


def test_a_stream_whose_frames_are_pruned(monkeypatch):
    model, (processor, how), chunks = seen_by("llava")
    policy = "spatial.prune(keep=40%)+snapkv:budget=20,window=4"
    stream = Stream(model, processor, policy, every=6, **how)
    with watched(monkeypatch, stream) as watch, logits_of(model) as ours:
        for chunk in chunks:
            watch.note(stream.see(chunk).seen)
        answer = stream.ask("why", **ASKED)
    parts = whole(stream, chunks, "why")
    hidden = torch.cat([dropped_by_spacing(part["input_ids"], "40%") for part in parts], dim=1)
    layers = [layer.model_index for layer in foveate_layers(stream._cache)]
    theirs = full_cache(
        model, parts, answer.ids, watch.events, hidden=dict.fromkeys(layers, hidden)
    )
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=TOLERANCE)
