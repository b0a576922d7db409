"""A saved context belongs to one model, one policy and one tokenizer, and says so."""

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

import foveate
from foveate.backends.hf.internals import CACHE
from foveate.core.errors import CacheMismatch, InvalidInput, UnsupportedCache
from tests import zoo
from tests.conformance.compare import GREEDY, difference

POLICY = "snapkv:budget=50%,window=4"


def tokenizer(**vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer of a few words."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token="a")))


@pytest.fixture
def saved(tmp_path):
    """A context that llama read, with a tokenizer's fingerprint."""
    with foveate.compress(zoo.build("llama"), POLICY) as session:
        session.prefill(**zoo.prompt("llama", lengths=(23, 40)))
        return session.save(tmp_path / "context.safetensors", tokenizer=tokenizer(a=0, b=1))


def test_another_model_is_refused(saved):
    other = zoo.fresh("llama")
    with torch.no_grad():
        other.model.layers[1].self_attn.k_proj.weight[0, 0] += 1e-3
    for model in (other, zoo.build("qwen2")):
        with (
            foveate.compress(model, POLICY) as session,
            pytest.raises(CacheMismatch, match="another model"),
        ):
            session.load(saved)


@pytest.mark.parametrize("family", ["llama", "llava"])
def test_a_model_that_was_saved_and_loaded_in_between_is_the_same_one(family, tmp_path):
    model, inputs = zoo.fresh(family), zoo.prompt(family, lengths=(23, 40))
    with foveate.compress(model, POLICY) as session:
        session.prefill(**inputs)
        path = session.save(tmp_path / "context.safetensors")
    model.save_pretrained(tmp_path / "model")
    again = type(model).from_pretrained(tmp_path / "model", dtype=model.dtype)
    for one in (model, again):
        with foveate.compress(one, POLICY) as session:
            session.load(path)


def test_another_policy_is_refused_and_the_right_one_is_named(saved):
    with (
        foveate.compress(zoo.build("llama"), "knorm:budget=50%") as session,
        pytest.raises(CacheMismatch, match=r"foveate\.policy\('snapkv:budget=50%,window=4'\)"),
    ):
        session.load(saved)


def test_another_tokenizer_is_refused(saved):
    with foveate.compress(zoo.build("llama"), POLICY) as session:
        with pytest.raises(CacheMismatch, match="another tokenizer"):
            session.load(saved, tokenizer=tokenizer(a=1, b=0))
        session.load(saved, tokenizer=tokenizer(a=0, b=1))
        session.load(saved)


def test_what_is_no_saved_cache_is_refused(tmp_path):
    foreign = tmp_path / "foreign.safetensors"
    save_file({"a": torch.zeros(1)}, foreign)
    (tmp_path / "text").write_text("no tensors")
    with foveate.compress(zoo.build("llama"), POLICY) as session:
        for name, reason in {
            "missing": "not a saved cache",
            "text": "not a saved cache",
            "foreign.safetensors": "schema",
        }.items():
            with pytest.raises(InvalidInput, match=reason):
                session.load(tmp_path / name)


def test_what_was_never_read_or_never_compressed_cannot_be_saved(tmp_path):
    from transformers import DynamicCache

    model = zoo.build("llama")
    with foveate.compress(model, POLICY) as session:
        with pytest.raises(UnsupportedCache, match="not compressed by Foveate"):
            session.save(tmp_path / "x", cache=DynamicCache(config=model.config))
        session.expect(tokens=40)
        cache = DynamicCache(config=model.config)
        model(torch.full((1, 20), 30), **{CACHE: cache})
        with pytest.raises(InvalidInput, match="no finished prompt"):
            session.save(tmp_path / "x", cache=cache)


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_a_loaded_context_is_the_saved_one(family, tmp_path):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(31, 40))
    question = zoo.extend(family, inputs, new_text=5).cached
    with foveate.compress(model, "h2o:budget=50%,when=over_budget(every=2)") as session:
        cache = session.prefill(**inputs)
        path = session.save(tmp_path / "context.safetensors")
        answers = [
            model.generate(**question, **{CACHE: each}, max_new_tokens=6)
            for each in (session.load(path), cache)
        ]
    assert torch.equal(*answers)


@pytest.mark.parametrize("family", ["qwen2_vl", "qwen3_vl"])
def test_a_saved_context_brings_its_own_positions_along(family, tmp_path):
    """Its M-RoPE offset, which the model itself knows of its latest prompt alone."""
    model = zoo.build(family)
    first, second = zoo.prompt(family), zoo.prompt(family, lengths=(60,), images=2, seed=5)
    question = zoo.extend(family, first, new_text=5).cached
    del question["position_ids"]  # left to the model
    with foveate.compress(model, "knorm:budget=50%") as session:
        cache = session.prefill(**first)
        path = session.save(tmp_path / "context.safetensors")
        expected = model.generate(**question, **{CACHE: cache}, **GREEDY)
        session.prefill(**second)
        answer = model.generate(**question, **{CACHE: session.load(path)}, **GREEDY)
    assert difference(answer, expected) == 0
