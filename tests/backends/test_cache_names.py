"""A cache is ``cache`` or ``past_key_values``, in and out, on every release, without a warning."""

from __future__ import annotations

import logging

import pytest
import torch
from transformers import DynamicCache
from transformers.utils import logging as transformers_logging

import foveate
from foveate.errors import InvalidInput
from foveate.hf.model.internals import _DEPRECATED, CACHE_NAMES, take_cache
from tests import zoo
from tests.conformance.compare import GREEDY

POLICY = "snapkv:budget=50%,window=4"


@pytest.fixture
def said():
    """What transformers logs, though it may have said the same before."""
    records = []
    handler = logging.Handler()
    handler.emit = records.append
    once = logging.Logger.warning_once
    once.cache_clear()
    root = transformers_logging.get_logger("transformers")
    root.addHandler(handler)
    yield records
    root.removeHandler(handler)
    once.cache_clear()


def turns(name, family):
    """Two turns of a conversation, whose cache is read and passed on under one name."""
    model, inputs = zoo.build(family), zoo.prompt(family)
    with foveate.compress(model, POLICY) as session:
        first = model.generate(**inputs, **GREEDY)
        cache = getattr(first, name)
        assert cache is session.cache
        told = zoo.append(family, inputs, first.sequences[:, inputs["input_ids"].shape[1] :])
        turn = zoo.extend(family, told, new_text=8).cached
        second = model.generate(**turn, **{name: cache}, **GREEDY)
        assert getattr(second, name) is cache
        assert cache.get_seq_length() == second.sequences.shape[1] - 1
    return torch.stack(second.logits)


@pytest.mark.parametrize("family", ["llama", "llava", "qwen2_vl"])
def test_generate_goes_on_under_either_name_and_says_nothing(family, said):
    one, other = (turns(name, family) for name in CACHE_NAMES)
    assert torch.equal(one, other)
    assert [record.getMessage() for record in said] == []


@pytest.mark.parametrize("name", CACHE_NAMES)
def test_forward_and_prefill_take_and_return_it_under_either_name(name, said):
    model, inputs = zoo.build("llava"), zoo.prompt("llava")
    with foveate.compress(model, POLICY) as session:
        mine = DynamicCache(config=model.config)
        out = model(**inputs, **{name: mine})
        assert all(getattr(out, each) is mine is session.cache for each in CACHE_NAMES)
        kept = session.stats.kept_tokens
        empty = DynamicCache()  # has no layers yet, and is as good a cache
        assert session.prefill(**inputs, **{name: empty}) is empty
        assert session.stats.kept_tokens == kept == 20
        both = model(input_ids=torch.tensor([[30]]), cache=mine, past_key_values=mine)
        assert both.cache is mine
        assert model(**inputs, **{name: None}).cache is session.cache
    assert [record.getMessage() for record in said] == []


def test_two_names_of_one_cache():
    cache, other = DynamicCache(), DynamicCache()
    for given in (
        {"cache": cache},
        {"past_key_values": cache},
        {"cache": cache, "past_key_values": None},
        {"cache": cache, "past_key_values": cache},
    ):
        assert take_cache({**given, "use_cache": True}) is cache
    assert take_cache({"use_cache": True}) is None
    with pytest.raises(ValueError, match="give one"):
        take_cache({"cache": cache, "past_key_values": other})


def test_two_caches_are_refused():
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    two = {name: DynamicCache(config=model.config) for name in CACHE_NAMES}
    with foveate.compress(model, POLICY) as session:
        for call in (model, model.generate, session.prefill):
            with pytest.raises(InvalidInput, match="two different caches"):
                call(**inputs, **two)


def test_what_transformers_says_outside_of_the_last_block_is_left_alone():
    log = logging.getLogger("transformers.utils.generic")
    told = log.makeRecord(log.name, logging.WARNING, "", 0, f"{_DEPRECATED}. Use it.", (), None)
    with foveate.compress(zoo.build("llama"), POLICY):
        with foveate.compress(zoo.build("qwen2"), POLICY):
            assert not log.filter(told)
        assert not log.filter(told)
    assert log.filter(told)
