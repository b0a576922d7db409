"""Fast KVzip: gates predict KVzip's scores, come from the authors' files, and follow every pass."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

import foveate
from foveate.cli.app import app
from foveate.errors import InvalidInput, ProfileMismatch
from foveate.methods.fast_kvzip import Gate, HiddenGate, train
from foveate.stages import OneRanking
from tests import zoo
from tests.conformance.compare import check_generate
from tests.core.prompts import compressed, prompt
from tests.profiles import saved_tensors, tensors_of
from tests.zoo.directory import save_llava


def literal_gate(x, w):
    """One token's score: the mean over query heads of the softmax beside the sinks, by hand."""

    def normed(a, weight):
        return a / (a.square().mean() + 1e-6).sqrt() * weight

    heads = []
    for h in range(len(w.offset)):
        key = normed(w.of_key[h] @ x, w.key_norm)
        r, of_group = len(key), []
        for g in range(w.offset.shape[1]):
            query = normed(w.of_query[h, g] @ x + w.query_offset[h, g], w.query_norm)
            own = (key @ query / r**0.5 + w.offset[h, g]).exp()
            sinks = sum((sink @ query / r**0.5).exp() for sink in w.sink_keys[h])
            of_group.append(own / (own + sinks))
        heads.append(sum(of_group) / len(of_group))
    return torch.stack(heads)


def test_pairs_are_ranked_by_a_literal_gate(tmp_path):
    """In one ranking of all heads and layers; rows are padded."""
    torch.manual_seed(3)
    tensors = [tensors_of("fast_kvzip", 2, 4) for _ in range(2)]
    path = saved_tensors(tmp_path, "fast_kvzip", tensors)
    given, hidden = prompt([40, 23], h=2, d=4, depth=2), torch.randn(2, 2, 40, 5)
    policy = foveate.fast_kvzip(profile=str(path), budget=10, sinks=1, recent=2)
    kept = compressed(policy, given, hidden_states=[*hidden])
    for row, (pad, length) in enumerate(zip(given.pads, given.lengths, strict=True)):
        scores = torch.stack(
            [
                torch.stack([literal_gate(x, Gate(**w)) for x in hidden[layer, row, pad:]], dim=1)
                for layer, w in enumerate(tensors)
            ]
        )
        scores[..., 0], scores[..., -2:] = torch.inf, torch.inf
        assert scores.shape == (2, 2, length)
        best = torch.zeros(scores.numel(), dtype=torch.bool)
        best[scores.flatten().topk(10 * 4).indices] = True
        ours = torch.stack([one.mask[row, :, pad:] for one in kept])
        assert torch.equal(ours, best.view(ours.shape))


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory):
    """Profiles of two models that were trained briefly, of prompts with images where they see."""
    found = {}
    with pytest.MonkeyPatch.context() as patched:
        # the package's attribute of this name is the method, not the module
        patched.setattr(importlib.import_module(HiddenGate.__module__), "STEPS", 20)
        for family in ("llama", "llava"):
            prompts = [zoo.prompt(family, seed=1), zoo.prompt(family, seed=2)]
            made = foveate.calibrate(zoo.build(family), "fast_kvzip", prompts)
            folder = tmp_path_factory.mktemp(family)
            found[family] = str(made.save(folder / "fast_kvzip.safetensors"))
    return found


@pytest.mark.parametrize("family", ["llama", "llava"])
@pytest.mark.parametrize("keeps", ["budget=40%", "budget=12,recent=4,when=over_budget(every=2)"])
def test_a_model_answers_as_with_the_rest_masked(calibrated, family, keeps):
    policy = foveate.policy(f"fast_kvzip:profile={calibrated[family]},{keeps}")
    inputs = zoo.prompt(family, lengths=(23, 40) if family == "llama" else (40,), seed=3)
    check_generate(zoo.build(family), policy, inputs)


def test_chunks_and_draft_tokens_change_no_score(calibrated):
    """The gate sees each token once, in the pass that reads it."""
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(40,), seed=3)
    policy = foveate.policy(f"fast_kvzip:profile={calibrated['llama']},budget=12")
    with foveate.compress(model, policy) as session:
        model.generate(**inputs, max_new_tokens=1)
        whole = [kept.clone() for kept in session.stats.kept]
    with foveate.compress(model, policy) as session:
        model.generate(**inputs, max_new_tokens=1, prefill_chunk_size=9)
        for ours, expected in zip(session.stats.kept, whole, strict=True):
            assert torch.equal(ours, expected)


def test_training_finds_what_a_gate_decides():
    """Scores of a drawn gate, from hidden states: the loss falls below half of the mean's."""
    torch.manual_seed(0)
    teacher, hidden = Gate(**tensors_of("fast_kvzip", 2, 4, 4, hidden=8)), torch.randn(600, 8)
    goals = teacher(hidden[None])[0].T
    trained = train(hidden[:500], goals[:500], groups=2)
    found = trained(hidden[None, 500:])[0].T.detach()
    error = (found - goals[500:]).square().mean()
    assert error < 0.5 * (goals[:500].mean(0) - goals[500:]).square().mean()


def published(path, heads=2, groups=2, size=32, layers=3):
    """A file as the release writes it: names and shapes of its modules, and arrays of losses."""
    torch.manual_seed(1)
    w = tensors_of("fast_kvzip", heads, 4, heads * groups, hidden=size)
    modules = {
        "q_proj.weight": w["of_query"].flatten(0, 2),
        "q_proj.bias": w["query_offset"].flatten(),
        "k_proj.weight": w["of_key"].flatten(0, 1),
        "q_norm.weight": w["query_norm"],
        "k_norm.weight": w["key_norm"],
        "k_base": w["sink_keys"][:, None],
        "b": w["offset"][:, None],
    }
    torch.save({"module": [modules] * layers, "loss": np.zeros((3, layers))}, path)
    return w


def test_a_file_of_the_authors_makes_a_profile(tmp_path):
    model = zoo.build("llama")
    groups = model.config.num_attention_heads // model.config.num_key_value_heads
    expected = published(tmp_path / "q2.pt", groups=groups, size=model.config.hidden_size)
    profile = foveate.import_profile(model, "fast_kvzip", tmp_path / "q2.pt")
    path = profile.save(tmp_path / "fast_kvzip.safetensors")
    for name, tensor in profile.by_layer[0].items():
        assert_close(tensor, expected[name], rtol=0.0, atol=0.0)
    policy = foveate.policy(f"fast_kvzip:budget=50%,profile={path}")
    assert policy.score == HiddenGate(profile=str(path))
    assert policy.budget == OneRanking(amount="50%")
    check_generate(model, policy, zoo.prompt("llama", lengths=(40,)))


def test_what_does_not_fit_is_refused(tmp_path, calibrated):
    model = zoo.build("llama")
    published(tmp_path / "small.pt", size=7)
    with pytest.raises(InvalidInput, match="hidden states of 7, and LlamaForCausalLM"):
        foveate.import_profile(model, "fast_kvzip", tmp_path / "small.pt")
    torch.save({"module": [{}]}, tmp_path / "empty.pt")
    for name in ("empty.pt", "missing.pt"):
        with pytest.raises(InvalidInput, match=name):
            foveate.import_profile(model, "fast_kvzip", tmp_path / name)
    with pytest.raises(ProfileMismatch, match="calibrate fast_kvzip"):
        foveate.compress(zoo.build("qwen2"), f"fast_kvzip:budget=9,profile={calibrated['llama']}")
    policy = foveate.policy(f"fast_kvzip:budget=9,profile={calibrated['llama']}")
    given = prompt([40], h=2, d=4, depth=3)
    with pytest.raises(InvalidInput, match="hidden_states="):
        foveate.compress_tensors(policy, given.layers)
    with pytest.raises(InvalidInput, match=r"one \[b, n, hidden\]"):
        foveate.compress_tensors(policy, given.layers, hidden_states=[torch.ones(1, 3, 4)])


def test_the_command_converts_a_file_of_the_authors(tmp_path):
    directory = save_llava(tmp_path / "model")
    config = zoo.build("llava").config.text_config
    groups = config.num_attention_heads // config.num_key_value_heads
    shape = {"groups": groups, "size": config.hidden_size, "layers": config.num_hidden_layers}
    published(tmp_path / "gates.pt", heads=config.num_key_value_heads, **shape)
    words = ["calibrate", "fast_kvzip", "--model", str(directory), "--from"]
    out = tmp_path / "gates.safetensors"
    result = CliRunner().invoke(app, [*words, str(tmp_path / "gates.pt"), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert foveate.policy(f"fast_kvzip:budget=20%,profile={out}")
