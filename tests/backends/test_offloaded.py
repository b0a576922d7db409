"""Models whose weights accelerate keeps elsewhere: in main memory, or in files."""

from __future__ import annotations

import copy

import pytest
import torch

import foveate
from foveate.chat.pipeline import Pipeline
from foveate.errors import CacheMismatch, UnsupportedModel
from foveate.hf.model.devices import input_device
from foveate.stream import Offload, Stream
from tests import zoo
from tests.stream import tiny
from tests.stream.test_stream import ASKED, drawn_frame

accelerate = pytest.importorskip("accelerate")
POLICY = "snapkv:budget=24,window=4"


@pytest.fixture(params=["cpu", "disk"])
def offloaded(request, tmp_path):
    """A model all of whose weights are on the meta device."""
    model = copy.deepcopy(tiny.model())
    if request.param == "cpu":
        return accelerate.cpu_offload(model, execution_device="cpu")
    return accelerate.disk_offload(model, tmp_path / "weights", execution_device="cpu")


def chatted(model, path):
    processor = tiny.processor()
    chat = foveate.Chat(model, processor, POLICY)
    first = chat.say("what is it?", images=[drawn_frame(1)], **ASKED)
    again = foveate.Chat.load(chat.save(path), model, processor)
    answer = Pipeline(model, processor)("a text", question="what?", policy=POLICY, **ASKED)
    return first.ids.tolist(), again.say("and?", **ASKED).ids.tolist(), answer["answer"]


def streamed(model, path):
    stream = Stream(model, tiny.processor(), POLICY, every=6, offload=Offload(fetch=2))
    for number in range(4):
        stream.see(drawn_frame(number))
    again = Stream.load(stream.save(path), model, tiny.processor())
    return [each.ask("where?", **ASKED).ids.tolist() for each in (stream, again)]


@pytest.mark.parametrize("use", [chatted, streamed])
def test_they_chat_and_stream_save_and_load_as_in_memory(offloaded, use, tmp_path):
    assert offloaded.device.type == "meta"
    assert use(offloaded, tmp_path / "file") == use(tiny.model(), tmp_path / "file")


def test_a_policy_reads_weights_that_are_offloaded(tmp_path):
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama")
    moved = accelerate.disk_offload(copy.deepcopy(model), tmp_path, execution_device="cpu")
    caches = []
    for each in (model, moved):
        with foveate.compress(each, "criticalkv:budget=90%,window=4") as session:
            caches.append(session.prefill(**inputs))
    for ours, theirs in zip(caches[0].layers, caches[1].layers, strict=True):
        assert torch.equal(ours.pairs.columns, theirs.pairs.columns)


def test_a_file_is_of_the_weights_wherever_they_are(tmp_path):
    model, other = zoo.fresh("llama"), zoo.fresh("llama")
    other.model.layers[1].mlp.up_proj.weight.data[0, 0] = 9.0
    moved = accelerate.disk_offload(copy.deepcopy(model), tmp_path / "a", execution_device="cpu")
    another = accelerate.disk_offload(other, tmp_path / "b", execution_device="cpu")
    with foveate.compress(moved, POLICY) as session:
        session.prefill(**zoo.prompt("llama"))
        path = session.save(tmp_path / "context")
    with foveate.compress(model, POLICY) as session:
        session.load(path)
    with (
        foveate.compress(another, POLICY) as session,
        pytest.raises(CacheMismatch, match="other weights"),
    ):
        session.load(path)


def test_weights_that_are_nowhere_are_told():
    model = zoo.fresh("llama").to("meta")
    with pytest.raises(UnsupportedModel, match=r"meta device.*from_pretrained\(\)"):
        input_device(model)
