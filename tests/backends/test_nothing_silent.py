"""Whatever way a prompt is read inside a block, it is compressed, or that it is not is said."""

from operator import attrgetter

import pytest
import torch
from transformers import (
    Blip2Config,
    Blip2ForConditionalGeneration,
    Kosmos2Config,
    Kosmos2ForConditionalGeneration,
)

import foveate
from foveate.errors import InvalidInput, UnsupportedModel
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.conformance.compare import check_generate

SPEC = "snapkv:budget=50%,window=4"
SIZE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
TOWER = {**SIZE, "image_size": 16, "patch_size": 8}


WITHOUT = {"qwen2_5_vl": {"images": 0}}  # whose positions need what images need


def asked(model, inputs, **how):
    return model.generate(**inputs, max_new_tokens=3, do_sample=False, **how)


@pytest.mark.parametrize(
    ("family", "part"),
    [
        ("llama", "model"),
        ("llava", "model"),
        ("llava", "model.language_model"),
        ("qwen2_5_vl", "model.language_model"),
        ("gemma3", "model"),
    ],
)
def test_a_prompt_that_a_part_reads_is_compressed_as_the_wholes(family, part):
    model, inputs = zoo.fresh(family), zoo.prompt(family, **WITHOUT.get(family, {}))
    said = asked(model, inputs)
    ids = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    with foveate.compress(model, SPEC) as session:
        model(**ids)
        whole = [layer.pairs.columns for layer in foveate_layers(session.cache)]
        model.get_submodule(part)(**ids)
        assert session.stats.kept_tokens == ids["input_ids"].shape[1] // 2
        mine = [layer.pairs.columns for layer in foveate_layers(session.cache)]
    assert all(torch.equal(a, b) for a, b in zip(whole, mine, strict=True))
    assert torch.equal(asked(model, inputs), said)


def test_a_forward_without_a_call_is_compressed_and_its_classs_raises():
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama")
    for forward in ("forward", "model.forward"):
        with foveate.compress(model, SPEC) as session:
            attrgetter(forward)(model)(**inputs)
            assert session.stats.kept_tokens < session.stats.seen
    with (
        foveate.compress(model, SPEC),
        pytest.raises(UnsupportedModel, match="not through a call"),
    ):
        type(model.model).forward(model.model, **inputs)


def test_a_generate_that_never_calls_the_model_raises(monkeypatch):
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama")
    monkeypatch.setattr(type(model), "generate", lambda self, **_: inputs["input_ids"])
    with foveate.compress(model, SPEC), pytest.raises(UnsupportedModel, match="without a call"):
        asked(model, inputs)


def blip2():
    text = {
        "model_type": "opt",
        "vocab_size": 200,
        "hidden_size": 64,
        "ffn_dim": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "word_embed_proj_dim": 64,
        "max_position_embeddings": 128,
        "eos_token_id": None,
    }
    former = {**SIZE, "encoder_hidden_size": 32, "vocab_size": 200}
    model = Blip2ForConditionalGeneration(
        Blip2Config(
            vision_config=TOWER,
            qformer_config=former,
            text_config=text,
            num_query_tokens=6,
            image_token_id=7,
            image_token_index=7,
        )
    )
    ids = torch.cat([torch.full((1, 6), 7), torch.arange(20, 50)[None]], dim=1)
    return model, model.language_model, {"input_ids": ids}


def kosmos2():
    text = {
        "vocab_size": 200,
        "max_position_embeddings": 128,
        "embed_dim": 64,
        "layers": 2,
        "ffn_dim": 96,
        "attention_heads": 4,
        "eos_token_id": None,
    }
    model = Kosmos2ForConditionalGeneration(
        Kosmos2Config(text_config=text, vision_config=TOWER, latent_query_num=4)
    )
    ids = torch.arange(20, 56)[None]
    mask = torch.zeros_like(ids)
    mask[:, 1:5] = 1
    return model, model.text_model, {"input_ids": ids, "image_embeds_position_mask": mask}


@pytest.mark.parametrize("make", [blip2, kosmos2])
def test_a_generate_that_hands_over_to_an_inner_model_is_compressed(make):
    torch.manual_seed(0)
    model, inner, inputs = make()
    model.eval()
    inputs |= {"pixel_values": torch.randn(1, 3, 16, 16)}
    inputs |= {"attention_mask": torch.ones_like(inputs["input_ids"])}
    stock = asked(model, inputs)
    said = []
    for compressed in (model, inner):
        with foveate.compress(compressed, "full"):
            assert torch.equal(asked(model, inputs), stock)
        with foveate.compress(compressed, SPEC) as session:
            said.append(asked(model, inputs))
        assert session.stats.kept_tokens == inputs["input_ids"].shape[1] // 2
    assert torch.equal(*said)
    assert torch.equal(asked(model, inputs), stock)


@pytest.mark.parametrize("family", ["llama", "llava"])
def test_results_are_of_the_prompt_and_not_of_a_negative_prompt(family):
    model, inputs = zoo.build(family), zoo.prompt(family)
    tokens = inputs["input_ids"].shape[1]
    guided = {"guidance_scale": 1.5, "negative_prompt_ids": inputs["input_ids"][:, -9:]}
    with foveate.compress(model, SPEC) as session:
        asked(model, inputs)
        alone = session.stats
        asked(model, inputs, **guided)
    assert session.stats.seen == alone.seen == tokens
    assert session.stats.bytes_after == alone.bytes_after
    assert session.held_share().shape[1] == tokens + 2


def test_both_prompts_of_guidance_are_compressed():
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama")
    caches = {}

    def after(module, args, kwargs, output):
        caches[id(output[CACHE])] = output[CACHE]

    with foveate.compress(model, SPEC):
        hook = model.model.register_forward_hook(after, with_kwargs=True)
        asked(model, inputs, guidance_scale=1.5, negative_prompt_ids=inputs["input_ids"][:, -20:])
        hook.remove()
    ends = [[layer.memory.finished for layer in foveate_layers(c)] for c in caches.values()]
    assert [set(each) for each in ends] == [{inputs["input_ids"].shape[1]}, {20}]
    assert all(layer.pairs.compressed for c in caches.values() for layer in foveate_layers(c))


def test_guidance_with_everything_kept_is_the_stock_guidance():
    model, inputs = zoo.build("llama"), zoo.prompt("llama")
    guided = {"guidance_scale": 1.5, "negative_prompt_ids": inputs["input_ids"][:, -9:]}
    stock = asked(model, inputs, **guided)
    with foveate.compress(model, "full"):
        assert torch.equal(asked(model, inputs, **guided), stock)


def test_a_model_that_is_its_own_assistant_is_refused_by_name():
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama")
    with foveate.compress(model, SPEC), pytest.raises(InvalidInput, match="is the model itself"):
        asked(model, inputs, assistant_model=model)


@pytest.mark.parametrize(
    "spec",
    [
        "snapkv:budget=50%,window=8",
        "adakv:budget=50%,window=8",
        "pyramidkv:budget=50%,window=8",
        "snapkv(window=8)+prefixkv:budget=50%",
        "snapkv:budget=50%,window=8,when=over_budget",
    ],
)
def test_a_row_shorter_than_the_window_is_kept_whole_and_refuses_nobody(spec):
    model, family = zoo.build("llama"), "llama"
    inputs = zoo.prompt(family, lengths=(5, 40))
    with foveate.compress(model, spec) as session:
        asked(model, inputs)
        kept = [layer.float().mean(-1) for layer in session.stats.kept]
        asked(model, zoo.row(family, inputs, 0))
        alone = session.stats.kept
    assert all(float(of_rows[0]) == 5 for of_rows in kept)
    assert sum(float(of_rows[1]) for of_rows in kept) / len(kept) == 20
    assert all(bool((of_row == 5).all()) for of_row in alone)
    check_generate(model, foveate.policy(spec), inputs)
