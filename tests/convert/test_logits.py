"""A converted model computes what its original does."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

import foveate
from foveate.hf.model.modality import visual_token_ids
from foveate.prompts.prompt import read

from ..conformance.compare import check_generate
from .conftest import LAYOUTS

QUESTION = "What is the answer in there?"


def images(count):
    """Images of noise, no two of one shape."""
    generator = torch.Generator().manual_seed(7)
    sizes = [(40 + 17 * n, 31) for n in range(count)]
    noise = [torch.randint(0, 256, (h, w, 3), generator=generator) for w, h in sizes]
    return [Image.fromarray(one.byte().numpy()) for one in noise]


@pytest.mark.parametrize("name", LAYOUTS)
def test_logits_are_those_of_the_authors_forward(make, name):
    one = make(name)
    prompt = read(one.loaded, QUESTION, images(2))
    ids = prompt.inputs["input_ids"]
    image_id = one.loaded.model.config.image_token_id
    ours = one.loaded.model(**prompt.inputs).logits[0]
    theirs = one.forward(one.state, ids[0].tolist(), image_id, prompt.inputs["pixel_values"])
    assert prompt.visual_tokens == int((ids == image_id).sum()) > 0
    assert theirs.std() > 0.1
    torch.testing.assert_close(ours[:, : theirs.shape[1]], theirs, rtol=1e-4, atol=1e-4)
    added = ours[:, theirs.shape[1] :]  # <image>: never the largest
    torch.testing.assert_close(added, theirs.mean(-1, keepdim=True)[:, : added.shape[1]])


@pytest.mark.parametrize("name", LAYOUTS)
def test_compressed_in_a_left_padded_batch(make, name, monkeypatch):
    loaded = make(name).loaded
    monkeypatch.setattr(loaded.model.generation_config, "eos_token_id", None)
    (picture,) = images(1)
    token = loaded.reader.image_token
    texts = [f"{token} Is it?", f"{token} What is the answer in there, and where?"]
    inputs = loaded.reader(text=texts, images=[picture, picture], padding=True, return_tensors="pt")
    assert int(inputs["attention_mask"][0, 0]) == 0
    settings = {"max_new_tokens": 4, "do_sample": False}
    stock = loaded.model.generate(**inputs, **settings)
    with foveate.compress(loaded.model, "full"):
        assert torch.equal(loaded.model.generate(**inputs, **settings), stock)
    check_generate(loaded.model, foveate.policy("snapkv:budget=40%,window=4"), inputs)


@pytest.mark.parametrize("name", LAYOUTS)
def test_image_tokens_are_known(make, name):
    loaded = make(name).loaded
    prompt = read(loaded, QUESTION, images(1))
    ids = visual_token_ids(loaded.model.config)
    assert ids == [loaded.model.config.image_token_id]
    with foveate.compress(loaded.model, "vl_cache:budget=30%") as session:  # it asks for them
        loaded.model.generate(**prompt.inputs, max_new_tokens=2)
    assert session.stats.bytes_after < 0.5 * session.stats.bytes_before
