"""What leaves nothing to compress, or holds it by rules of its own, is refused at the call, by its
name, with the true reason and the way out.
"""

import pytest
import torch
from transformers import AttentionInterface, DynamicCache, QuantizedCache, cache_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import foveate
from foveate.errors import UnsupportedCache, UnsupportedModel
from foveate.hf.model.internals import CACHE
from tests import zoo

SPEC = "snapkv:budget=50%,window=4"


@pytest.fixture
def model():
    return zoo.fresh("llama")


@pytest.fixture
def inputs():
    return zoo.prompt("llama")


@pytest.mark.parametrize(
    "name", ["generate_batch", "init_continuous_batching", "continuous_batching_context_manager"]
)
def test_continuous_batching_is_refused_at_the_call(name, model, inputs):
    """`generate_batch` and the rest of continuous batching | refused | it keeps all requests in one
    paged cache; `generate` takes a padded batch, vLLM has pages. `transformers serve` does the same
    in a process of its own, where no block is open
    """
    if not hasattr(model, name):
        pytest.skip("not in this release")
    with (
        foveate.compress(model, SPEC),
        pytest.raises(UnsupportedCache, match=f"^{name} .*one paged cache.*generate\\(\\).*vLLM"),
    ):
        getattr(model, name)([inputs["input_ids"][0].tolist()])
    assert name not in vars(model)


@pytest.mark.parametrize("said", ["argument", "configuration"])
def test_a_paged_cache_is_refused_by_its_name(said, model, inputs):
    """`cache_implementation="paged"` | refused | `generate` would batch continuously"""
    how = {"cache_implementation": "paged"}
    if said == "configuration":
        model.generation_config.cache_implementation = "paged"
        how = {}
    with (
        foveate.compress(model, SPEC),
        pytest.raises(UnsupportedCache, match=r"cache_implementation='paged' .*one paged cache"),
    ):
        model.generate(**inputs, **how, max_new_tokens=2)


def test_a_manager_from_before_the_block_is_told_the_reason(model, inputs):
    model.config._attn_implementation = "paged|sdpa"
    with (
        foveate.compress(model, SPEC),
        pytest.raises(UnsupportedCache, match=r"continuous batching.*one paged cache"),
    ):
        model(**inputs, use_cache=False)


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("generate", r"use_cache=False was given to generate\(\)"),
        ("forward", "use_cache=False, as trainers pass it"),
        ("model", r"the model's generation_config has use_cache=False.*use_cache=True\)"),
        ("call", "this generation_config has use_cache=False"),
    ],
)
def test_where_there_is_no_cache_it_is_said_who_left_it_out(where, says, model, inputs):
    """`use_cache=False`, given or in a `generation_config` | refused | no cache is left to
    compress; the error says who left it out
    """
    how = {"use_cache": False} if where in ("generate", "forward") else {}
    if where == "model":
        model.generation_config.use_cache = False
    if where == "call":
        how["generation_config"] = type(model.generation_config)(use_cache=False)
    with foveate.compress(model, SPEC) as session:
        with pytest.raises(UnsupportedCache, match=says), torch.no_grad():
            model(**inputs, **how) if where == "forward" else model.generate(**inputs, **how)
        if where == "model":
            model.generate(**inputs, use_cache=True, max_new_tokens=2)
            assert session.stats.kept_tokens == 20


@pytest.mark.parametrize("how", ["set_attn_implementation", "by hand"])
def test_an_attention_function_of_ones_own_is_refused_in_the_block_too(how, model, inputs):
    """an attention function of one's own, also one that is set in the block | refused | what it
    does with masks is not known
    """
    AttentionInterface.register("mine", sdpa_attention_forward)
    try:
        with foveate.compress(model, SPEC):
            if how == "by hand":
                model.config._attn_implementation = "mine"
            else:
                model.set_attn_implementation("mine")
            with pytest.raises(
                UnsupportedModel, match="'mine', which is none of transformers' own"
            ):
                model.generate(**inputs, max_new_tokens=2)
    finally:
        AttentionInterface._global_mapping.pop("mine")


# Classes of caches and of their layers


@pytest.mark.parametrize("name", ["MtpCache", "DFlashCache"])
def test_a_cache_that_counts_tokens_otherwise_is_refused_by_its_name(name, model, inputs):
    """`MtpCache`, `DFlashCache` | refused | drafts count tokens otherwise than `DynamicCache`"""
    if not hasattr(cache_utils, name):
        pytest.skip("not in this release")
    cache = getattr(cache_utils, name)(config=model.config)
    with (
        foveate.compress(model, SPEC),
        pytest.raises(UnsupportedCache, match=f"a {name} overrides DynamicCache.get_"),
    ):
        model.generate(**inputs, **{CACHE: cache}, max_new_tokens=2)


class Titled(DynamicCache):
    """A class of one's own that changes nothing."""

    def title(self):
        return "mine"


def test_a_cache_with_methods_beside_the_stock_ones_is_compressed(model, inputs):
    cache = Titled(config=model.config)
    with foveate.compress(model, SPEC) as session:
        model.generate(**inputs, **{CACHE: cache}, max_new_tokens=2)
        assert session.cache is cache
        assert session.stats.kept_tokens == 20


def test_a_quantised_cache_is_refused_by_its_name(model, inputs):
    """Whatever its backend (quanto, hqq, fp8): its layers hold codes."""
    cache = QuantizedCache.__new__(QuantizedCache)
    cache.layers = []
    with (
        foveate.compress(model, SPEC),
        pytest.raises(UnsupportedCache, match="a QuantizedCache cannot be compressed"),
    ):
        model.generate(**inputs, **{CACHE: cache}, max_new_tokens=2)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("DynamicIndexedLayer", "keep an index beside keys and values of each head"),
        ("Fp8QuantizedLayer", "layers of the classes Fp8QuantizedLayer, which this version"),
        ("LayerOfTomorrow", "layers of the classes LayerOfTomorrow, which this version"),
    ],
)
def test_a_layer_of_another_class_is_never_left_as_it_is_in_silence(name, says, model, monkeypatch):
    """Beside layers that are compressed."""
    stock = DynamicCache.__init__
    base = getattr(cache_utils, name, cache_utils.DynamicLayer)
    other = type(name, (base,), {"__init__": lambda self: None})

    def init(self, *args, **kwargs):
        stock(self, *args, **kwargs)
        self.layers[1:2] = [other()]

    monkeypatch.setattr(DynamicCache, "__init__", init)
    with pytest.raises(UnsupportedModel, match=says):
        foveate.compress(model, SPEC)


def test_a_bounded_layer_with_a_state_stays_as_it_is(model, inputs, monkeypatch):
    """No model that can be compressed has one in 5.24: a Llama's second layer stands for it."""
    name = "LinearAttentionAndSlidingWindowAttentionLayer"
    if not hasattr(cache_utils, name):
        pytest.skip("not in this release")
    init = DynamicCache.__init__

    def bounded(self, *args, **kwargs):
        init(self, *args, **kwargs)
        self.layers[1:2] = [getattr(cache_utils, name)(sliding_window=64)]

    monkeypatch.setattr(DynamicCache, "__init__", bounded)
    how = {"max_new_tokens": 3, "output_logits": True, "return_dict_in_generate": True}
    stock = model.generate(**inputs, **how, do_sample=False)
    with foveate.compress(model, "full"):
        whole = model.generate(**inputs, **how, do_sample=False)
    assert all(map(torch.equal, whole.logits, stock.logits))
    with foveate.compress(model, SPEC) as session:
        session.prefill(**inputs)
        left = session.cache.layers[1]
        assert type(left).__name__ == name
        assert left.keys.shape[2] == session.stats.seen == 40
        assert session.stats.kept_tokens == 20
