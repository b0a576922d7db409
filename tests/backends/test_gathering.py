"""Profiles of tensors are what all queries of some prompts add up to."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, CohereConfig, GlmConfig, LlamaConfig

import foveate
from foveate.errors import InvalidInput, InvalidParameter, ProfileMismatch, UnsupportedModel
from foveate.hf.measuring.record import record
from foveate.hf.measuring.rotation import SHIFT, rotations
from foveate.profiles.tensor_profile import TensorProfile, load_tensors
from tests import zoo
from tests.jitter import other_side

LAYERS, HEADS = 3, 2  # of the tiny models
TEXTS = [zoo.prompt("llama", seed=1), zoo.prompt("llama", lengths=(33,), seed=2)]
PADDED = [zoo.prompt("llama", lengths=(23, 40), seed=3)]
GATHERED = ("q_filters", "expected_attention", "kvzap")


def rows_of(model, prompts):
    """Each row without its padding, as a prompt of its own."""
    for inputs in prompts:
        for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
            yield {"input_ids": ids[mask.bool()][None]}


def literal_filters(model, prompts):
    """By a singular value decomposition of all queries, stacked."""
    found = []
    seen = [record(model, **row).layers for row in rows_of(model, prompts)]
    for layer in range(LAYERS):
        queries = torch.cat([one[layer].q[0] for one in seen], dim=1).double()
        directions = []
        for head in queries:
            u, s, vh = torch.linalg.svd(head, full_matrices=False)
            assert s[0] > 1.001 * s[1]
            directions.append(vh[0] * u[:, 0].sum().sign())
        found.append(torch.stack(directions).view(HEADS, -1, head.shape[1]).mean(1))
    return found


def before_rotation(model, row):
    """Queries as the model's own rotation takes them, layer by layer."""
    module = importlib.import_module(type(model).__module__)
    seen, turn = [], module.apply_rotary_pos_emb

    def noting(q, *args, **kwargs):
        seen.append(q[0].double())
        return turn(q, *args, **kwargs)

    module.apply_rotary_pos_emb = noting
    try:
        model(**row)
    finally:
        module.apply_rotary_pos_emb = turn
    return seen


@pytest.mark.parametrize("prompts", [TEXTS, TEXTS[:1]], ids=["two", "one"])
def test_a_filter_is_the_first_singular_vector_of_the_queries(prompts):
    model = zoo.build("llama")
    profile = foveate.calibrate(model, "q_filters", prompts)
    assert isinstance(profile, TensorProfile)
    assert (profile.method, profile.layers, profile.samples) == ("q_filters", LAYERS, len(prompts))
    assert profile.longest == max(inputs["input_ids"].shape[1] for inputs in prompts)
    with other_side():
        literal = literal_filters(model, prompts)
    for ours, expected in zip(profile.by_layer, literal, strict=True):
        assert_close(ours["filters"].double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3_text"])
def test_stored_statistics_are_those_of_queries_before_the_rotation(family):
    model = zoo.build(family)
    prompts = [zoo.prompt(family, seed=1), zoo.prompt(family, lengths=(33,), seed=2)]
    profile = foveate.calibrate(model, "expected_attention", prompts)
    with other_side():
        seen = [before_rotation(model, row) for row in rows_of(model, prompts)]
    indices = [layer.number for layer in record(model, **TEXTS[0]).layers]
    for index, ours in zip(indices, profile.by_layer, strict=True):
        for head in range(ours["mean"].shape[0]):
            queries = torch.cat([one[index][head, 4:] for one in seen])
            assert_close(ours["mean"][head].double(), queries.mean(0), rtol=1e-4, atol=1e-5)
            expected = torch.cov(queries.T)
            assert_close(ours["covariance"][head].double(), expected, rtol=1e-3, atol=1e-4)


def test_padding_does_not_count():
    model = zoo.build("llama")
    batch = foveate.calibrate(model, "expected_attention", PADDED)
    with other_side():
        alone = foveate.calibrate(model, "expected_attention", list(rows_of(model, PADDED)))
    for ours, theirs in zip(batch.by_layer, alone.by_layer, strict=True):
        for name in ("mean", "covariance"):
            assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-4)


CONFIGURED = {
    "halves": LlamaConfig,
    "neighbours, some channels": GlmConfig,
    "neighbours": CohereConfig,
}


def tiny(config, **more):
    torch.manual_seed(0)
    made = config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **more,
    )
    model = AutoModelForCausalLM.from_config(made).eval()
    for weights in model.parameters():
        if weights.ndim > 1:
            weights.data.normal_(0, 0.2)
    return model


@pytest.mark.parametrize("config", CONFIGURED.values(), ids=CONFIGURED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_how_a_model_turns_its_queries_is_found_out(config, dtype):
    model = tiny(config).to(dtype)
    found = rotations(model, {"input_ids": torch.arange(3, 43)[None]})
    pairs = 4 if config is GlmConfig else 8
    second = pairs if config is LlamaConfig else 1
    for rotation in found:
        assert len(rotation.frequencies) == pairs
        assert (int(rotation.first[0]), int(rotation.second[0])) == (0, second)
        assert float(rotation.frequencies[0]) == 1.0
    assert SHIFT > 0


def test_frequencies_that_change_with_the_length_are_refused():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    model = tiny(LlamaConfig, rope_parameters=rope)
    with pytest.raises(UnsupportedModel, match=r"length \(dynamic\).*without a profile"):
        foveate.calibrate(model, "expected_attention", [{"input_ids": torch.ones(1, 9).long()}])


def test_another_rotation_is_refused(monkeypatch):
    model = tiny(LlamaConfig)
    monkeypatch.setattr("foveate.hf.measuring.rotation.halves", lambda f, start: _none())
    with pytest.raises(UnsupportedModel, match="layer 0 is off by"):
        rotations(model, {"input_ids": torch.arange(3, 43)[None]})


def _none():
    from foveate.ops.rotation import Rotation

    none = torch.zeros(0)
    return Rotation(none.long(), none.long(), none)


def test_images_are_no_texts():
    model = zoo.build("llava")
    profile = foveate.calibrate(model, "q_filters", [zoo.prompt("llava")])
    assert profile.layers == LAYERS
    text = {"input_ids": torch.arange(zoo.TEXT_FROM, zoo.TEXT_FROM + 30)[None]}
    with pytest.raises(InvalidInput, match="a prompt has an image"):
        foveate.calibrate(model, "expected_attention", [text, zoo.prompt("llava")])
    with pytest.raises(InvalidInput, match="give input_ids"):
        foveate.calibrate(model, "expected_attention", [{"inputs_embeds": torch.zeros(1, 9, 64)}])


def test_prompts_of_sinks_alone_are_refused():
    short = {"input_ids": torch.arange(9, 13)[None]}
    with pytest.raises(InvalidInput, match="Give longer prompts"):
        foveate.calibrate(zoo.build("llama"), "expected_attention", [short])


@pytest.mark.parametrize("method", GATHERED)
def test_a_measurement_goes_on_where_it_was(tmp_path, method):
    model, path = zoo.build("llama"), tmp_path / "measured.part"

    def breaking():
        yield TEXTS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        foveate.calibrate(model, method, breaking(), progress=path)
    assert path.exists()
    resumed = foveate.calibrate(model, method, TEXTS, progress=path)
    assert not path.exists()
    whole = foveate.calibrate(model, method, TEXTS)
    assert resumed.samples == whole.samples == 2
    for ours, theirs in zip(resumed.by_layer, whole.by_layer, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("method", GATHERED)
def test_a_calibrated_policy_answers_and_is_refused_on_another_model(tmp_path, method):
    model = zoo.build("llama")
    path = foveate.calibrate(model, method, TEXTS).save(tmp_path / "profile.safetensors")
    policy = foveate.policy(f"{method}:budget=50%,profile={path}")
    assert foveate.policy(policy.spec) == policy
    inputs = zoo.prompt("llama", lengths=(23, 40), seed=3)
    with foveate.compress(model, policy) as session:
        model.generate(**inputs, max_new_tokens=3)
        kept = sum(layer.sum(-1) for layer in session.stats.kept)
    assert kept.tolist() == [n // 2 * LAYERS * HEADS for n in (23, 40)]
    with pytest.raises(ProfileMismatch, match="'LlamaForCausalLM-3x64', not of 'Qwen2"):
        foveate.compress(zoo.build("qwen2"), policy)


def test_a_spec_may_say_more_than_the_name_but_nothing_that_is_not_there():
    model = zoo.build("llama")
    named, said = (
        foveate.calibrate(model, spec, TEXTS[:1])
        for spec in ("expected_attention", foveate.expected_attention(budget="20%"))
    )
    assert torch.equal(named.by_layer[0]["mean"], said.by_layer[0]["mean"])
    with pytest.raises(InvalidParameter, match=r"no parameter 'budgte'.*'budget'"):
        foveate.calibrate(model, "q_filters:budgte=3", TEXTS)
    with pytest.raises(InvalidInput, match="no prompt to calibrate on"):
        foveate.calibrate(model, "q_filters", [])


def test_the_file_holds_what_was_measured(tmp_path):
    profile = foveate.calibrate(zoo.build("llama"), "expected_attention", TEXTS[:1])
    path = profile.save(tmp_path / "profile.safetensors")
    found = load_tensors(str(path), "expected_attention")
    for ours, theirs in zip(found.by_layer, profile.by_layer, strict=True):
        assert ours.keys() == theirs.keys() == {"mean", "covariance", "frequencies", "pairs"}
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
