"""A profile is the mean of what prompts show, and belongs to the model that read them."""

import math
from fractions import Fraction

import pytest
import torch
from transformers import DynamicCache

import foveate
from foveate.errors import InvalidInput, InvalidParameter, ProfileMismatch
from foveate.hf import calibrate_each
from foveate.hf.model.internals import CACHE
from foveate.profiles.profile import Profile
from tests import zoo

LAYERS, HEADS = 3, 2  # of the tiny models
PROMPTS = {
    "llama": [zoo.prompt("llama", seed=1), zoo.prompt("llama", lengths=(33,), seed=2)],
    "llava": [zoo.prompt("llava", seed=1), zoo.prompt("llava", lengths=(51,), images=2, seed=2)],
    "a padded batch": [zoo.prompt("llama", lengths=(23, 40), seed=3)],
    "padded and not": [zoo.prompt("llava", lengths=(40, 31), seed=4), zoo.prompt("llava", seed=5)],
}


def model_of(which):
    return zoo.build("llava" if which in ("llava", "padded and not") else "llama")


def ratios_by_hand(model, policy, prompts):
    """Kept over length, averaged over heads and rows, then over prompts."""
    sums = [Fraction(0)] * LAYERS
    for inputs in prompts:
        lengths = inputs["attention_mask"].sum(-1).tolist()
        with foveate.compress(model, policy) as session:
            session.prefill(**inputs)
            for layer, kept in enumerate(session.stats.kept):
                rows = zip(kept.tolist(), lengths, strict=True)
                shares = [Fraction(n, length) for row, length in rows for n in row]
                sums[layer] += sum(shares, Fraction(0)) / len(shares)
    return [float(each / len(prompts)) for each in sums]


def pairwise(keys):
    """The mean cosine of all pairs of different keys [n, d], at least 0."""
    rows = [[x / math.sqrt(sum(y * y for y in key)) for x in key] for key in keys.tolist()]
    cosines = [
        sum(x * y for x, y in zip(a, b, strict=True)) for i, a in enumerate(rows) for b in rows[:i]
    ]
    return max(0.0, sum(cosines) / len(cosines))


def redundancies_by_hand(model, prompts):
    """Of the keys in a stock cache, by layer and head: the mean over rows, then over prompts."""
    sums = torch.zeros(LAYERS, HEADS, dtype=torch.float64)
    for inputs in prompts:
        cache = DynamicCache()
        model(**inputs, **{CACHE: cache})
        pads = (inputs["attention_mask"] == 0).sum(-1).tolist()
        for layer in range(LAYERS):
            for head in range(HEADS):
                keys = cache.layers[layer].keys[:, head]
                each = [pairwise(row[pad:]) for row, pad in zip(keys, pads, strict=True)]
                sums[layer, head] += sum(each) / len(each)
    return (sums / len(prompts)).tolist()


# ------------------------------------------------------------------- what is measured


@pytest.mark.parametrize("budget", ["50%", "20"])
@pytest.mark.parametrize("which", PROMPTS)
def test_prefixkvs_profile_is_the_mean_share_that_each_layer_keeps(which, budget):
    model, prompts, policy = model_of(which), PROMPTS[which], f"prefixkv:budget={budget}"
    profile = foveate.calibrate(model, policy, prompts)
    expected = ratios_by_hand(model, policy, prompts)
    assert len(set(expected)) > 1
    assert profile.by_layer == pytest.approx(expected, rel=1e-6)
    assert (profile.method, profile.budget) == ("prefixkv", budget)
    assert (profile.layers, profile.samples) == (LAYERS, len(prompts))


@pytest.mark.parametrize("method", ["prefixkv:budget={}", "mixkv:window=4,budget={}"])
@pytest.mark.parametrize("which", ["llava", "a padded batch"])
def test_profiles_at_several_budgets_are_those_at_each_from_prompts_read_once(
    which, method, tmp_path
):
    model, prompts, reads = model_of(which), PROMPTS[which], []
    policies = [method.format(budget) for budget in ("50%", "20", "80%")]
    hook = model.register_forward_pre_hook(lambda *_: reads.append(1))
    together = calibrate_each(model, policies, prompts, progress=tmp_path / "part")
    hook.remove()
    assert len(reads) == len(prompts)
    assert not list(tmp_path.iterdir())
    for policy, one in zip(policies, together, strict=True):
        alone = foveate.calibrate(model, policy, prompts)
        assert torch.tensor(one.by_layer) == pytest.approx(torch.tensor(alone.by_layer), abs=1e-5)
        assert (one.method, one.budget, one.samples) == (alone.method, alone.budget, alone.samples)


def test_what_several_budgets_do_not_change_is_refused():
    model = zoo.build("llama")
    with pytest.raises(InvalidParameter, match="expected_attention has a profile of tensors"):
        calibrate_each(model, ["expected_attention:budget=20%"], PROMPTS["llama"])
    with pytest.raises(InvalidInput, match="no prompt"):
        calibrate_each(model, ["prefixkv:budget=20%"], [])


@pytest.mark.parametrize("which", PROMPTS)
def test_mixkvs_profile_is_the_mean_redundancy_of_the_keys_of_each_head(which):
    model, prompts = model_of(which), PROMPTS[which]
    profile = foveate.calibrate(model, "mixkv:budget=50%,window=4", prompts)
    expected = redundancies_by_hand(model, prompts)
    assert max(max(row) for row in expected) > 0.05
    for row, by_hand in zip(profile.by_layer, expected, strict=True):
        assert row == pytest.approx(by_hand, rel=1e-4, abs=1e-6)
    assert (profile.method, profile.budget) == ("mixkv", "")
    assert (profile.layers, profile.samples) == (LAYERS, len(prompts))


def test_redundancies_do_not_depend_on_the_budget():
    model, prompts = zoo.build("llama"), PROMPTS["llama"]
    profiles = [
        foveate.calibrate(model, foveate.mixkv(budget=budget, window=4), prompts)
        for budget in (0.5, 0.2, 11)
    ]
    assert profiles[0] == profiles[1] == profiles[2]


def test_one_prompt_twice_is_that_prompt():
    model, (first, second) = zoo.build("llama"), PROMPTS["llama"]
    once, twice = (foveate.calibrate(model, "prefixkv:budget=50%", [first] * n) for n in (1, 2))
    assert twice.by_layer == once.by_layer
    other = foveate.calibrate(model, "prefixkv:budget=50%", [second])
    assert other.by_layer != once.by_layer


def test_prompts_may_come_one_by_one_and_leave_no_trace():
    model, prompts = zoo.build("llama"), PROMPTS["llama"]
    expected = foveate.calibrate(model, "prefixkv:budget=50%", prompts)
    assert foveate.calibrate(model, "prefixkv:budget=50%", iter(prompts)) == expected
    before = model(**prompts[0]).logits
    foveate.calibrate(model, "prefixkv:budget=50%", prompts)
    assert torch.equal(model(**prompts[0]).logits, before)
    assert set(prompts[0]) == {"input_ids", "attention_mask"}


def test_layers_that_are_not_compressed_are_not_in_the_profile():
    model, inputs = zoo.build("gemma3_text"), zoo.prompt("gemma3_text", lengths=(60, 50))
    profile = foveate.calibrate(model, "prefixkv:budget=50%", [inputs])
    assert profile.layers == len(profile.by_layer) == 2  # of four, two of which slide


@pytest.mark.parametrize(
    ("spec", "alone"),
    [
        ("mixkv(window=4):budget=50%", "mixkv:budget=50%,window=4"),
        ("mixkv(window=4)+lookm.merge:budget=50%", "mixkv:budget=50%,window=4"),
        ("prefixkv+lookm.merge:budget=50%", "prefixkv:budget=50%"),
    ],
)
def test_a_method_is_calibrated_in_a_sum_as_it_is_alone(spec, alone):
    """``calibrate`` says of its policy: "of the method that is calibrated, alone or in a sum"."""
    model, prompts = zoo.build("llama"), PROMPTS["llama"]
    expected = foveate.calibrate(model, alone, prompts)
    assert foveate.calibrate(model, spec, prompts) == expected


# ------------------------------------------------------------------- what it is good for


@pytest.mark.parametrize("which", PROMPTS)
def test_with_a_profile_a_layer_keeps_its_ratio_up_to_the_exact_total(tmp_path, which):
    model, prompts = model_of(which), PROMPTS[which]
    profile = foveate.calibrate(model, "prefixkv:budget=50%", prompts)
    path = profile.save(tmp_path / "prefixkv.json")
    with foveate.compress(model, f"prefixkv:budget=50%,profile={path}") as session:
        for inputs in prompts:
            session.prefill(**inputs)
            kept = torch.stack(session.stats.kept)
            lengths = inputs["attention_mask"].sum(-1).tolist()
            for row, length in enumerate(lengths):
                counts = kept[:, row].tolist()
                assert sum(map(sum, counts)) == length // 2 * LAYERS * HEADS
                for ratio, heads in zip(profile.by_layer, counts, strict=True):
                    assert len(set(heads)) == 1
                    assert abs(heads[0] - ratio * length) < 1.5


def test_with_the_profile_of_one_prompt_alone_it_keeps_what_the_search_kept(tmp_path):
    model, inputs = zoo.build("llama"), PROMPTS["llama"][0]
    path = foveate.calibrate(model, "prefixkv:budget=50%", [inputs]).save(tmp_path / "p.json")
    kept = []
    for spec in ("prefixkv:budget=50%", f"prefixkv:budget=50%,profile={path}"):
        with foveate.compress(model, spec) as session:
            cache = session.prefill(**inputs)
            kept.append([layer.pairs.columns for layer in cache.layers])
    for searched, calibrated in zip(*kept, strict=True):
        assert torch.equal(searched, calibrated)


@pytest.mark.parametrize("method", ["prefixkv", "mixkv"])
@pytest.mark.parametrize("which", ["llama", "llava", "a padded batch"])
def test_a_calibrated_policy_answers_and_keeps_the_exact_total(tmp_path, which, method):
    model, prompts = model_of(which), PROMPTS[which]
    spec = f"{method}:budget=50%" + (",window=4" if method == "mixkv" else "")
    path = foveate.calibrate(model, spec, prompts).save(tmp_path / "profile.json")
    with foveate.compress(model, f"{spec},profile={path}") as session:
        answer = model.generate(**prompts[0], max_new_tokens=5)
        kept = sum(layer.sum(-1) for layer in session.stats.kept)
    lengths = prompts[0]["attention_mask"].sum(-1)
    assert answer.shape == (len(lengths), prompts[0]["input_ids"].shape[1] + 5)
    assert kept.tolist() == [length // 2 * LAYERS * HEADS for length in lengths.tolist()]


def test_with_the_redundancies_of_one_prompt_it_keeps_what_it_keeps_without(tmp_path):
    model, inputs, spec = zoo.build("llama"), PROMPTS["llama"][0], "mixkv:budget=50%,window=4"
    path = foveate.calibrate(model, spec, [inputs]).save(tmp_path / "mixkv.json")
    kept = []
    for each in (spec, f"{spec},profile={path}"):
        with foveate.compress(model, each) as session:
            cache = session.prefill(**inputs)
            kept.append([layer.pairs.columns for layer in cache.layers])
    for measured, calibrated in zip(*kept, strict=True):
        assert torch.equal(measured, calibrated)


# ------------------------------------------------------------------- what is refused


def attached(model):
    """What a block changes on a model."""
    config = model.config.get_text_config(decoder=True)
    hooks = len(model._forward_hooks) + len(model._forward_pre_hooks)
    return config._attn_implementation, hooks, "generate" in vars(model)


@pytest.mark.parametrize("other", ["qwen2", "llava"])
@pytest.mark.parametrize("method", ["prefixkv", "mixkv"])
def test_another_model_is_refused_before_anything_happens(tmp_path, method, other):
    spec = f"{method}:budget=50%" + (",window=4" if method == "mixkv" else "")
    profile = foveate.calibrate(zoo.build("llama"), spec, PROMPTS["llama"])
    path = profile.save(tmp_path / "profile.json")
    policy, model = foveate.policy(spec, profile=str(path)), zoo.build(other)
    before = attached(model)
    with pytest.raises(ProfileMismatch) as refused:
        foveate.compress(model, policy)  # not entered
    text = str(refused.value)
    assert "'LlamaForCausalLM-3x64'" in text
    assert f"'{type(model).__name__}-3x64'" in text
    assert f"'foveate calibrate {method} --model MODEL'" in text
    assert attached(model) == before


@pytest.mark.parametrize("spec", ["{} + lookm.merge", "{}+david", "h2o+{}", "csp+lookm+{}"])
@pytest.mark.parametrize("method", ["prefixkv", "mixkv"])
def test_a_sum_with_a_profile_is_refused_on_another_model_too(tmp_path, method, spec):
    profile = Profile(
        method=method,
        model="another",
        layers=3,
        samples=1,
        by_layer=[[0.5] * 2] * 3,
        budget="50%" if method == "prefixkv" else "",
    )
    term = f"{method}(profile={profile.save(tmp_path / 'profile.json')})"
    policy = foveate.policy(spec.format(term), budget="50%")
    with pytest.raises(ProfileMismatch, match="'another', not of 'LlamaForCausalLM-3x64'"):
        foveate.compress(zoo.build("llama"), policy)


def test_another_number_of_layers_is_refused_before_anything_happens(tmp_path):
    profile = Profile(
        method="prefixkv",
        model="LlamaForCausalLM-3x64",
        layers=2,
        samples=1,
        budget="50%",
        by_layer=[0.5, 0.5],
    )
    path = profile.save(tmp_path / "profile.json")
    with pytest.raises(ProfileMismatch, match="with 2 layers, and 3 layers are to be compressed"):
        foveate.compress(zoo.build("llama"), f"prefixkv:budget=50%,profile={path}")


@pytest.mark.parametrize("spec", ["prefixkv:budget=100%", "prefixkv:budget=40", "mixkv:budget=64"])
def test_a_prompt_that_fits_the_budget_is_refused(spec):
    model = zoo.build("llama")
    with pytest.raises(InvalidInput) as refused:
        foveate.calibrate(model, spec, [PROMPTS["llama"][0]])
    budget = spec.partition("=")[2]
    assert f"a prompt of 40 tokens fits the budget {budget}" in str(refused.value)
    assert "longer prompts or a smaller budget" in str(refused.value)
    with foveate.compress(model, "full"):  # the model is free again
        pass


def test_one_short_prompt_among_others_is_refused():
    prompts = [zoo.prompt("llama"), zoo.prompt("llama", lengths=(18,))]
    with pytest.raises(InvalidInput, match="a prompt of 18 tokens fits the budget 20"):
        foveate.calibrate(zoo.build("llama"), "prefixkv:budget=20", prompts)


@pytest.mark.parametrize("prompts", [[], iter(())], ids=["list", "iterator"])
def test_no_prompt_is_refused(prompts):
    with pytest.raises(InvalidInput, match="no prompt to calibrate on: give at least one"):
        foveate.calibrate(zoo.build("llama"), "prefixkv:budget=50%", prompts)


@pytest.mark.parametrize("spec", ["snapkv:budget=50%", "full", "lookm:budget=50%"])
def test_a_method_that_measures_nothing_is_refused_before_a_prompt_is_read(spec):
    def never():
        raise AssertionError("a prompt was read")
        yield

    name = spec.partition(":")[0]
    says = f"{name} has nothing to calibrate.*mixkv, prefixkv, q_filters"
    with pytest.raises(InvalidParameter, match=says):
        foveate.calibrate(zoo.build("llama"), spec, never())


def test_a_failing_prompt_leaves_the_model_as_it_was():
    model = zoo.build("llama")
    before = attached(model)
    with pytest.raises(InvalidInput, match="empty"):
        foveate.calibrate(
            model, "prefixkv:budget=50%", [{"input_ids": torch.zeros(1, 0, dtype=torch.long)}]
        )
    assert attached(model) == before
