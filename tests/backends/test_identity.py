"""A saved context belongs to one model: its weights, adapters, quantisation and dtype."""

from __future__ import annotations

import copy

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch.testing._internal.two_tensor import TwoTensor

import foveate
from foveate.errors import CacheMismatch
from foveate.hf.model.internals import CACHE
from foveate.hf.model.weights import weights_digest
from foveate.hf.saving import file_checks
from foveate.hf.saving.identity import ModelIdentity
from tests import zoo
from tests.backends.test_saving import fingerprint
from tests.backends.test_ways import PEFT_WARNS
from tests.stream import tiny

POLICY = "h2o:budget=50%,when=over_budget(every=2)"


def written(model, path, policy=POLICY):
    with foveate.compress(model, policy) as session:
        session.prefill(**zoo.prompt("llama", lengths=(23, 40)))
        return session.save(path)


def read(model, path, policy=POLICY):
    """The cache of a file, after the model has gone on with it."""
    question = zoo.extend("llama", zoo.prompt("llama", lengths=(23, 40)), new_text=5).cached
    with foveate.compress(model, policy) as session:
        cache = session.load(path)
        model.generate(**question, **{CACHE: session.fork(cache)}, max_new_tokens=3)
        return cache


def lora(model, name="default", seed=1, **settings):
    """The model with an adapter, whose weights the seed draws."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, **settings
    )
    torch.manual_seed(seed)
    if not isinstance(model, peft.PeftModel):
        return peft.get_peft_model(model, config, adapter_name=name).eval()
    model.add_adapter(name, config)
    return model.eval()


@PEFT_WARNS
def test_a_context_of_one_adapter_is_refused_under_another_and_both_are_named(tmp_path):
    model = lora(lora(zoo.fresh("llama"), "x"), "y", seed=2)
    model.set_adapter("x")
    path = written(model, tmp_path / "context")
    model.set_adapter("y")
    with pytest.raises(CacheMismatch, match=r"adapters were 'x' \(\w+\), this model's are 'y'"):
        read(model, path)
    with model.disable_adapter(), pytest.raises(CacheMismatch, match="this model's are none"):
        read(model, path)
    model.set_adapter("x")
    read(model, path)


@PEFT_WARNS
def test_names_of_adapters_and_adapters_that_are_not_active_make_no_difference(tmp_path):
    path = written(lora(zoo.fresh("llama"), "x"), tmp_path / "context")
    other = lora(lora(zoo.fresh("llama"), "spare", seed=3), "mine")  # of the weights of "x"
    other.set_adapter("mine")
    read(other, path)
    plain = written(zoo.fresh("llama"), tmp_path / "plain")
    with other.disable_adapter():
        read(other, plain)
        read(zoo.fresh("llama"), written(other, tmp_path / "disabled"))


@PEFT_WARNS
def test_a_peft_model_and_a_base_with_the_adapter_put_into_it_are_one_model(tmp_path):
    """As transformers' ``load_adapter`` puts it there."""
    peft = pytest.importorskip("peft")
    adapted = lora(zoo.fresh("llama"))
    path = written(adapted, tmp_path / "context")
    base = zoo.fresh("llama")
    peft.inject_adapter_in_model(adapted.peft_config["default"], base, "loaded")
    peft.set_peft_model_state_dict(base, peft.get_peft_model_state_dict(adapted), "loaded")
    read(base.eval(), path)
    for module in base.modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            module.enable_adapters(False)
    with pytest.raises(CacheMismatch, match="this model's are none"):
        read(base, path)


@PEFT_WARNS
def test_several_adapters_count_together_and_so_does_their_scaling(tmp_path):
    both = lora(lora(zoo.fresh("llama"), "x"), "y", seed=2)
    both.base_model.set_adapter(["x", "y"])
    path = written(both, tmp_path / "both")
    both.base_model.set_adapter(["y", "x"])
    read(both, path)
    both.set_adapter("x")
    with pytest.raises(CacheMismatch, match=r"were 'x' \(\w+\), 'y' \(\w+\), this model's are 'x'"):
        read(both, path)
    path = written(both, tmp_path / "context")
    with pytest.raises(CacheMismatch, match="adapters"):
        read(lora(zoo.fresh("llama"), "x", lora_alpha=3), path)


@PEFT_WARNS
def test_a_merged_adapter_is_part_of_the_weights(tmp_path):
    adapted = lora(zoo.fresh("llama"))
    path = written(adapted, tmp_path / "context")
    merged = lora(zoo.fresh("llama"))
    merged.merge_adapter()
    with pytest.raises(CacheMismatch, match=r"this model's are none; .* other weights"):
        read(merged, path)
    path = written(merged, tmp_path / "merged")
    read(lora(zoo.fresh("llama")).merge_and_unload(), path)
    with pytest.raises(CacheMismatch, match="other weights"):
        read(zoo.fresh("llama"), path)


@PEFT_WARNS
def test_a_profile_is_of_the_active_adapters():
    """As many commands and profiles compare weights by this digest."""
    model, base = lora(lora(zoo.fresh("llama"), "x"), "y", seed=2), zoo.fresh("llama")
    digests = {}
    for name in "xy":
        model.set_adapter(name)
        digests[name] = weights_digest(model.get_base_model())
    with model.disable_adapter():
        digests["none"] = weights_digest(model.get_base_model())
    assert len({*digests.values()}) == 3
    assert digests["none"] == weights_digest(base)


def test_another_quantisation_is_refused_and_both_are_named(tmp_path):
    plain, quantised = zoo.fresh("llama"), zoo.fresh("llama")
    quantised.config.quantization_config = {"quant_method": "gptq", "bits": 4, "group_size": 64}
    path = written(quantised, tmp_path / "quantised")
    with pytest.raises(CacheMismatch, match=r'was \{"bits": 4, .*"gptq"\}, this model\'s is none'):
        read(plain, path)
    quantised.config.quantization_config["bits"] = 8
    with pytest.raises(CacheMismatch, match=r'was \{"bits": 4, "quant_method": "gptq"\}, this'):
        read(quantised, path)


def test_weights_in_buffers_count(tmp_path):
    """As GPTQ and AWQ keep them."""
    model, other = zoo.fresh("llama"), zoo.fresh("llama")
    for each, value in ((model, 1), (other, 2)):
        each.model.layers[0].register_buffer("qweight", torch.full((3,), value))
    with pytest.raises(CacheMismatch, match="other weights"):
        read(other, written(model, tmp_path / "context"))


def test_weights_that_are_subclasses_of_tensors_count():
    """As torchao's quantised weights are: what they consist of is compared."""
    models = [zoo.fresh("llama") for _ in range(3)]
    for model, value in zip(models, (1.0, 1.0, 2.0), strict=True):
        parts = torch.ones(4, 4), torch.full((4, 4), value)
        model.model.layers[0].extra = torch.nn.Parameter(TwoTensor(*parts), requires_grad=False)
    first, same, other = map(ModelIdentity.of, models)
    assert first == same
    assert first.differences(other) == ["it had another configuration or other weights"]


def test_an_exact_cast_is_made_and_any_other_is_refused_with_both_dtypes(tmp_path):
    half = zoo.fresh("llama").bfloat16()
    path = written(half, tmp_path / "half")
    single = copy.deepcopy(half).float()
    cache = read(single, path)
    for ours, theirs in zip(cache.layers, read(half, path).layers, strict=True):
        for a, b in zip(ours.pairs.padded()[:2], theirs.pairs.padded()[:2], strict=True):
            assert a.dtype == torch.float32
            assert torch.equal(a, b.float())
    path = written(single, tmp_path / "single")
    with pytest.raises(CacheMismatch, match=r"model in float32, and this one is in bfloat16"):
        read(half, path)
    path = written(zoo.fresh("llama"), tmp_path / "rounded")
    with pytest.raises(CacheMismatch, match=r"its dtype was float32, this model's is bfloat16"):
        read(half, path)
    coded = "knorm+kivi(bits=4,residual=4,group=4):budget=50%"
    path = written(half, tmp_path / "coded", coded)
    with pytest.raises(CacheMismatch, match=r"in bfloat16, and this one is in float32: its store"):
        read(single, path, coded)


def test_a_chat_of_a_model_goes_on_in_its_cast_to_float32(tmp_path):
    model, processor = copy.deepcopy(tiny.model()).bfloat16(), tiny.processor()
    chat = foveate.Chat(model, processor, "snapkv:budget=40")
    chat.say("what is it?", images=[tiny.frame(1)], max_new_tokens=2)
    path = chat.save(tmp_path / "chat")
    again = foveate.Chat.load(path, model.float(), processor)
    assert again.say("and now?", max_new_tokens=2).ids.shape == (2,)


def test_attention_and_settings_of_answers_make_no_difference(tmp_path):
    path = written(zoo.fresh("llama"), tmp_path / "context")
    other = zoo.fresh("llama")
    other.set_attn_implementation("eager")
    other.config.pad_token_id, other.config.use_cache = 3, False
    read(other, path)


def as_before(path, model):
    """Rewrite a file as schema 2 had it, without adapters, quantisation and dtype."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        note = dict(file.metadata())
    note |= {"schema": "foveate-cache-2", "model": fingerprint(model)}
    note["digest"] = file_checks.digest(note, tensors)
    save_file(tensors, path, note)
    return path


def test_a_file_of_the_schema_before_is_read_by_its_weights(tmp_path):
    model = zoo.fresh("llama").bfloat16()
    path = as_before(written(model, tmp_path / "context"), model)
    read(model, path)
    assert (
        read(copy.deepcopy(model).float(), path).layers[0].pairs.padded()[0].dtype == torch.float32
    )
    with pytest.raises(CacheMismatch, match="another model"):
        read(zoo.build("qwen2"), path)
