"""A model comes out of a block as it went in, and one block at a time holds it."""

import copy

import pytest
import torch
from transformers import (
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
)
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import foveate
from foveate.errors import (
    AlreadyCompressing,
    InvalidInput,
    NothingCompressed,
    UnsupportedCache,
    UnsupportedModel,
)
from foveate.hf.model.internals import CACHE, AttentionInterface
from tests import zoo
from tests.conformance.compare import GREEDY, check_generate


def fingerprint(model):
    """All that a block might touch: registries, hooks, attributes, configurations, weights."""
    return {
        "attention": dict(ALL_ATTENTION_FUNCTIONS.items()),
        "masks": dict(ALL_MASK_ATTENTION_FUNCTIONS.items()),
        "hooks": {
            n: [(k, len(v)) for k, v in vars(m).items() if "hooks" in k and hasattr(v, "__len__")]
            for n, m in model.named_modules()
        },
        "attributes": {n: sorted(vars(m)) for n, m in model.named_modules()},
        "configs": {
            n: (m.config.to_json_string(), m.config._attn_implementation)
            for n, m in model.named_modules()
            if hasattr(m, "config")
        },
        "generate": model.generate.__func__,
        "forward": model.forward.__func__,
        "interface": (AttentionInterface.get_interface, "__getitem__" in vars(AttentionInterface)),
        "generation": model.generation_config.to_json_string(),
    }


@pytest.mark.parametrize("family", zoo.FAMILIES)
def test_the_model_and_transformers_are_untouched_on_exit(family):
    model, inputs = zoo.fresh(family), zoo.prompt(family)
    model.generate(**inputs, max_new_tokens=1)  # Qwen-VL notes its last offsets on itself
    before = fingerprint(model)
    with foveate.compress(model, "snapkv:budget=50%,window=4"):
        model.generate(**inputs, max_new_tokens=2)
    assert fingerprint(model) == before


@pytest.mark.parametrize("family", ["llama", "qwen2_5_vl", "gemma3"])
def test_they_are_untouched_after_an_exception_in_the_block_or_in_the_model(family):
    model, inputs = zoo.fresh(family), zoo.prompt(family)
    model.generate(**inputs, max_new_tokens=1)
    before = fingerprint(model)
    with pytest.raises(ZeroDivisionError), foveate.compress(model, "knorm:budget=50%"):
        _ = len(model.generate(**inputs, max_new_tokens=2)) / 0
    assert fingerprint(model) == before
    with (
        pytest.raises(foveate.FoveateError),  # 5 % of 40 tokens do not hold the window
        foveate.compress(model, "snapkv:budget=5%,window=4", strict=True),
    ):
        model.generate(**inputs, max_new_tokens=2)
    assert fingerprint(model) == before


def test_two_blocks_on_one_model_raise():
    model = zoo.build("llama")
    with (
        foveate.compress(model, "full"),
        pytest.raises(AlreadyCompressing, match="Leave that block first"),
    ):
        foveate.compress(model, "full")
    waiting = foveate.compress(model, "full")
    with foveate.compress(model, "full"), pytest.raises(AlreadyCompressing), waiting:
        pass
    with waiting:  # the model is free again
        pass


def test_a_block_can_be_entered_again():
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    session = foveate.compress(model, "knorm:budget=50%")
    with session:
        cache = session.prefill(**inputs)
    with session:
        more = zoo.extend("llama", inputs, new_text=3).cached
        model.generate(**more, **{CACHE: cache}, max_new_tokens=2)


def test_a_compressed_cache_is_of_no_use_outside_a_block():
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    with foveate.compress(model, "knorm:budget=50%") as session:
        cache = session.prefill(**inputs)
    more = zoo.extend("llama", inputs, new_text=3).cached
    with pytest.raises(UnsupportedCache, match="Use it inside a compress"):
        model.generate(**more, **{CACHE: cache}, max_new_tokens=2)
    with foveate.compress(model, "knorm:budget=25%"), pytest.raises(UnsupportedCache, match="50%"):
        model.generate(**more, **{CACHE: cache}, max_new_tokens=2)
    with foveate.compress(model, "knorm:budget=50%"):
        model.generate(**more, **{CACHE: cache}, max_new_tokens=2)


def test_a_prefill_outside_its_context_is_refused():
    model = zoo.build("llama")
    session = foveate.compress(model, "snapkv:budget=50%,window=4")
    for _ in range(2):
        with pytest.raises(NothingCompressed, match="inside its context"):
            session.prefill(**zoo.prompt("llama"))
        with session:
            session.prefill(**zoo.prompt("llama"))


def test_results_before_any_prompt_raise():
    with (
        foveate.compress(zoo.build("llama"), "full") as session,
        pytest.raises(NothingCompressed, match=r"model\.generate"),
    ):
        _ = session.stats


def test_models_that_cannot_be_compressed_are_refused_with_the_reason():
    with pytest.raises(UnsupportedModel, match="none of its layers has full attention"):
        foveate.compress(zoo.build("sliding"), "full")
    with pytest.raises(UnsupportedModel, match="not a transformers model"):
        foveate.compress(torch.nn.Linear(1, 1), "full")
    model = zoo.fresh("llama")
    model.config._attn_implementation_internal = "of_my_own"
    with pytest.raises(UnsupportedModel, match="'of_my_own', which is none of transformers'"):
        foveate.compress(model, "full")


def test_a_model_of_sliding_layers_only_is_refused():
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=50,
        sliding_window=8,
    )
    with pytest.raises(UnsupportedModel, match="sliding-window"):
        foveate.compress(MistralForCausalLM(config), "full")


SIZES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "head_dim": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 160,
    "sliding_window": 8,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def with_extras(kind):
    """A model whose attention has soft caps, or sinks, so large that they matter."""
    torch.manual_seed(0)
    if kind == "softcap":
        model = Gemma2ForCausalLM(Gemma2Config(**SIZES, attn_logit_softcapping=0.05))
    else:
        model = GptOssForCausalLM(GptOssConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1))
    for name, weights in model.named_parameters():
        torch.nn.init.normal_(weights, std=3.0 if "sinks" in name else 0.3)
    model.set_attn_implementation("eager")
    return model.eval()


@pytest.mark.parametrize("kind", ["softcap", "s_aux"])
@pytest.mark.parametrize("spec", ["snapkv:budget=12,window=4", "adakv:budget=12,window=4"])
def test_soft_caps_and_sinks_of_the_attention_are_computed(kind, spec):
    model, inputs = with_extras(kind), zoo.prompt("llama", lengths=(23, 40))
    stock = model.generate(**inputs, **GREEDY)
    with foveate.compress(model, "full"):
        ours = model.generate(**inputs, **GREEDY)
    assert all(torch.equal(a, b) for a, b in zip(ours.logits, stock.logits, strict=True))
    check_generate(model, foveate.policy(spec), inputs)


def test_softmax_n_beside_sinks_is_refused():
    model, inputs = with_extras("s_aux"), zoo.prompt("llama")
    with (
        foveate.compress(model, "snapkv:budget=12,window=4,attend=softmax_n(n=1.0)"),
        pytest.raises(UnsupportedModel, match="cannot be combined with this model's attention"),
    ):
        model.generate(**inputs, **GREEDY)


@pytest.mark.parametrize(
    "how",
    [
        {"cache_implementation": "static"},
        pytest.param(
            {"cache_implementation": "offloaded"},
            marks=pytest.mark.skipif(
                torch.version.cuda is not None and not torch.cuda.is_available(),
                reason="PyTorch for CUDA without a GPU: transformers cannot make this cache",
            ),
        ),
        {"use_cache": False},
    ],
)
def test_caches_that_cannot_be_compressed_are_refused(how):
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    with foveate.compress(model, "knorm:budget=50%"), pytest.raises(UnsupportedCache):
        model.generate(**inputs, max_new_tokens=2, **how)


def test_a_cache_that_was_filled_elsewhere_is_refused():
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    cache = DynamicCache()
    model(**inputs, **{CACHE: cache})
    more = zoo.extend("llama", inputs, new_text=3).cached
    with (
        foveate.compress(model, "full"),
        pytest.raises(UnsupportedCache, match=r"no compress\(\) block has read"),
    ):
        model.generate(**more, **{CACHE: cache}, max_new_tokens=2)


def test_a_models_attention_that_does_not_reach_the_cache_is_noticed(monkeypatch):
    from transformers.models.llama import modeling_llama

    model, inputs = zoo.fresh("llama"), zoo.prompt("llama")
    rotate = modeling_llama.LlamaAttention.forward

    class Elsewhere:
        @staticmethod
        def get_interface(name, default):
            return default

    monkeypatch.setattr(modeling_llama, "ALL_ATTENTION_FUNCTIONS", Elsewhere)
    assert rotate is modeling_llama.LlamaAttention.forward
    with foveate.compress(model, "full"), pytest.raises(UnsupportedModel, match="interface"):
        model.generate(**inputs, max_new_tokens=2)


def test_an_empty_prompt_and_a_prompt_of_padding_are_refused():
    model = zoo.build("llama")
    with foveate.compress(model, "knorm:budget=50%"):
        with pytest.raises(InvalidInput, match="empty"):
            model(torch.zeros(1, 0, dtype=torch.long))
        ids = torch.full((2, 6), 30)
        with pytest.raises(InvalidInput, match="row 1 is nothing but padding"):
            model(ids, attention_mask=torch.tensor([[1] * 6, [0] * 6]))
        with pytest.raises(InvalidInput, match="Pad on the left"):
            model(ids, attention_mask=torch.tensor([[1] * 6, [1] * 4 + [0] * 2]))


def test_vision_of_another_shape_is_refused():
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    vision = torch.zeros(1, 39, dtype=torch.bool)
    with (
        foveate.compress(model, "full", vision=vision),
        pytest.raises(InvalidInput, match=r"\(1, 39\).*40 tokens"),
    ):
        model.generate(**inputs, max_new_tokens=1)


def test_crop_into_the_compressed_prompt_is_refused():
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    with foveate.compress(model, "knorm:budget=50%") as session:
        cache = session.prefill(**inputs)
        model(torch.tensor([[30, 31, 32]]), **{CACHE: cache})
        cache.crop(-3)
        assert cache.get_seq_length() == 40
        with pytest.raises(InvalidInput, match="compressed prompt"):
            cache.crop(-1)
    with foveate.compress(model, "h2o:budget=50%,when=over_budget") as session:
        cache = session.prefill(**inputs)
        with pytest.raises(InvalidInput, match="after_prefill"):
            cache.crop(-1)


@pytest.mark.parametrize("policy", ["full", "knorm:budget=50%"])
def test_a_context_read_in_inference_mode_is_continued_outside_of_it(policy):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(31, 40))
    question = zoo.extend("llama", inputs, new_text=3).cached
    with foveate.compress(model, policy) as session:
        cache = session.prefill(**inputs)
        expected = model.generate(**question, **{CACHE: cache}, max_new_tokens=4)
        with torch.inference_mode():
            cache = session.prefill(**inputs)
        answer = model.generate(**question, **{CACHE: cache}, max_new_tokens=4)
    assert torch.equal(answer, expected)


def test_a_prompt_of_one_token():
    model, ids = zoo.build("llama"), torch.tensor([[30]])
    stock = model.generate(ids, max_new_tokens=4)
    with foveate.compress(model, "knorm:budget=1") as session:
        assert torch.equal(model.generate(ids, max_new_tokens=4), stock)
        assert session.stats.kept_tokens == 1


def test_reset_makes_a_cache_new():
    model, inputs = zoo.build("qwen2_vl"), zoo.prompt("qwen2_vl")
    with foveate.compress(model, "snapkv:budget=50%,window=4") as session:
        cache = session.prefill(**inputs)
        first = [layer.pairs.columns.clone() for layer in cache.layers]
        cache.reset()
        assert cache.get_seq_length() == 0
        session.prefill(**inputs, **{CACHE: cache})
        assert all(
            torch.equal(a, layer.pairs.columns)
            for a, layer in zip(first, cache.layers, strict=True)
        )


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_batch_rows_can_be_repeated_and_selected(family):
    model, inputs = zoo.build(family), zoo.prompt(family, lengths=(23, 40))
    with foveate.compress(model, "knorm:budget=50%") as session:
        cache = session.prefill(**inputs)
        whole = copy.deepcopy(cache)
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([0, 2]))
        mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 1), value=1)
        step = {"input_ids": torch.tensor([[30], [31]]), "attention_mask": mask}
        ours = model(**step, **{CACHE: cache}).logits
        theirs = model(**step, **{CACHE: whole}).logits
    assert torch.equal(ours, theirs)
