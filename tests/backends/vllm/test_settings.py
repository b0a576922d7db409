"""What can be served, and what is refused with a sentence that names it; without vLLM."""

from types import SimpleNamespace

import pytest

import foveate
from foveate.errors import (
    InvalidBudget,
    InvalidParameter,
    ProfileMismatch,
    UnsupportedEngine,
    UnsupportedPolicy,
)
from foveate.vllm.plans.plans import Offer
from foveate.vllm.plans.settings import check_policy, check_profiles, settings_from
from foveate.vllm.startup.engine_checks import check_engine
from foveate.vllm.startup.options import CLASSES, SCHEDULER
from foveate.vllm.startup.support import check_layers
from tests.profiles import saved


def profile(folder, ratios):
    return saved(folder, "prefixkv", ratios, budget="20%")


def test_policy_of_the_additional_configuration_goes_before_the_variable():
    environ = {"FOVEATE_POLICY": "knorm:budget=10%"}
    given = {"foveate": {"policy": "mixkv:budget=20%"}, "other": 1}
    assert str(settings_from(given, environ).default) == "mixkv:budget=20%"
    assert str(settings_from({}, environ).default) == "knorm:budget=10%"
    assert str(settings_from(None, environ).default) == "knorm:budget=10%"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "FOVEATE_POLICY"),
        ({"foveate": {}}, "FOVEATE_POLICY"),
        ({"foveate": {"policy": 20}}, "20"),
        ({"foveate": {"policy": " "}}, "without a policy"),
        ({"foveate": "snapkv:budget=20%"}, "additional-config"),
        ({"foveate": {"polcy": "snapkv:budget=20%"}}, "Did you mean 'policy'"),
        ({"foveate": {"policy": "knorm:budget=20%", "tiers": 0}}, "tiers=0"),
        ({"foveate": {"policy": "knorm:budget=20%", "tiers": "4"}}, "tiers='4'"),
        ({"foveate": {"policy": "knorm:budget=20%", "tiers": True}}, "tiers=True"),
    ],
)
def test_configuration_that_says_nothing_usable_is_refused(given, said):
    with pytest.raises(InvalidParameter, match=said):
        settings_from(given, {})


@pytest.mark.parametrize(
    "spec",
    [
        "snapkv:budget=20%",
        "mixkv:budget=256",
        "csp:budget=20%",
        "david:budget=20%",
        "lookm:budget=20%",
        "knorm:budget=20%",
        "vnorm:budget=20%",
        "h2o:budget=20%",
        "mixkv+lookm.merge:budget=20%",
        "pyramidkv:budget=20%",
        "mixkv+pyramidkv.budget:budget=20%",
        "h2o:budget=20%,when=over_budget",
        "rkv:budget=256",
        "full",
    ],
)
def test_policies_with_one_count_for_all_heads_of_a_layer_are_served(spec):
    check_policy(foveate.policy(spec))


def test_prefixkv_is_served_with_a_profile(tmp_path):
    path = profile(tmp_path, [0.1, 0.3])
    check_policy(foveate.policy(f"prefixkv:budget=20%,profile={path},when=after_prefill"))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("adakv:budget=20%", "by each prompt's scores"),
        ("pyramidkv+adakv.budget:budget=20%", "by each prompt's scores"),
        ("prefixkv:budget=20%,when=after_prefill", "foveate calibrate"),
        ("meda:budget=20%", "more than the prompt's length"),
        ("recommended:budget=20%", "heads=by_profile"),
        ("kvzip:budget=20%", "heads=by_profile"),
        ("elastic_cache:budget=20%", r"fixed_slot\("),
        ("csp:budget=20%,decode_n=1.0", "softmax"),
        ("csp:budget=20%,fill=false", "fewer tokens than its budget"),
        ("kivi", r"kivi\(.*form of its own"),
        ("snapkv+kivi(bits=auto):budget=20%", "bits=auto divides one budget"),
        ("fastv.prune(keep=auto)+snapkv:budget=20%", "keep=auto divides one budget"),
        ("think:budget=20%", r"channels\(.*form of its own"),
        ("lookm:budget=20%,protect_text=true", "protect_text"),
    ],
)
def test_other_policies_are_refused_by_the_stage_in_the_way(spec, said):
    with pytest.raises(UnsupportedPolicy, match=said):
        check_policy(foveate.policy(spec))


def test_a_budget_in_bytes_is_refused():
    with pytest.raises(InvalidBudget, match="bytes"):
        check_policy(foveate.policy("knorm:budget=64MB"))


def test_a_servers_budgets_are_shares_and_tokens():
    """Neither bytes nor what scores find are offered to who mistypes one."""
    with pytest.raises(InvalidBudget) as found:
        settings_from({"foveate": {"policy": "knorm:budget=20quarks"}})
    assert "a number of tokens (256)." in str(found.value)
    assert "64MB" not in str(found.value)
    offer = Offer(settings_from({"foveate": {"policy": "knorm:budget=20%"}}))
    with pytest.raises(InvalidBudget) as found:
        offer.plan({"foveate_budget": 1.5}, 100)
    assert str(found.value).endswith("or a number of tokens (256).")


def test_a_profile_has_to_be_of_the_model_that_is_served(tmp_path):
    path = profile(tmp_path, [0.1, 0.3])
    policy = foveate.policy(f"prefixkv:budget=20%,profile={path},when=after_prefill")
    check_profiles(policy, "/models/tiny", 2)
    check_profiles(policy, "someone/tiny/", 2)
    with pytest.raises(ProfileMismatch, match="'other'"):
        check_profiles(policy, "someone/other", 2)
    with pytest.raises(ProfileMismatch, match="3 layers"):
        check_profiles(policy, "tiny", 3)


def engine(**changes):
    settings = {
        "kv_transfer_config": None,
        "speculative_config": None,
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "use_mla": False,
        "cache_dtype": "auto",
        "kv_cache_dtype_skip_layers": [],
        "scheduler_cls": CLASSES[SCHEDULER],
        "use_ubatching": False,
        "disable_chunked_mm_input": False,
        "async_scheduling": False,
        "use_v2_model_runner": False,
    } | changes
    one = SimpleNamespace(**settings)
    for part in ("parallel_config", "model_config", "cache_config", "scheduler_config"):
        setattr(one, part, one)
    return one


def test_plain_engine_is_accepted():
    policies = [foveate.policy("knorm:budget=20%")]
    check_engine(engine(), policies)
    check_engine(engine(speculative_config=SimpleNamespace(method="ngram")), policies)
    check_engine(engine(kv_transfer_config=object()), policies)


@pytest.mark.parametrize(
    ("change", "spec", "said"),
    [
        ({"async_scheduling": True}, "knorm:budget=20%", "--no-async-scheduling"),
        ({"use_v2_model_runner": True}, "knorm:budget=20%", "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({}, "pyramidkv:budget=20%", "differs by layer or KV head"),
    ],
)
def test_settings_that_do_not_go_with_a_drafter_are_named(change, spec, said):
    for method in ("draft_model", "eagle", "eagle3", "mtp"):
        drafts = {"speculative_config": SimpleNamespace(method=method)}
        check_engine(engine(**drafts), [foveate.policy("knorm:budget=20%")])
        with pytest.raises(UnsupportedEngine, match=f"by '{method}' and .*{said}"):
            check_engine(engine(**drafts | change), [foveate.policy(spec)])


@pytest.mark.parametrize(
    ("change", "spec", "said"),
    [
        ({"speculative_config": SimpleNamespace(method="ngram")}, "knorm:budget=20%", "specul"),
        ({"kv_transfer_config": object()}, "knorm:budget=20%", "KV connector"),
        ({"use_v2_model_runner": True}, "knorm:budget=20%", "VLLM_USE_V2_MODEL_RUNNER=0"),
        ({}, "pyramidkv:budget=20%", "differs by layer or KV head"),
    ],
)
def test_settings_that_do_not_go_with_pipeline_stages_are_named(change, spec, said):
    stages = {"pipeline_parallel_size": 2}
    check_engine(engine(**stages), [foveate.policy("knorm:budget=20%")])
    check_engine(engine(**change), [foveate.policy(spec)])
    with pytest.raises(UnsupportedEngine, match=rf"--pipeline-parallel-size 2\) and .*{said}"):
        check_engine(engine(**stages | change), [foveate.policy(spec)])


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("speculative_config", SimpleNamespace(method="suffix"), "by 'suffix': of its methods"),
        ("decode_context_parallel_size", 2, "decode context"),
        ("prefill_context_parallel_size", 2, "prefill context"),
        ("use_mla", True, "MLA"),
        ("cache_dtype", "nvfp4", "'auto' and 'fp8' are served"),
        ("kv_cache_dtype_skip_layers", ["0"], "some layers only"),
        ("scheduler_cls", None, "--scheduler-cls"),
    ],
)
def test_settings_that_do_not_go_together_are_named(name, value, said):
    with pytest.raises(UnsupportedEngine, match=said):
        check_engine(engine(**{name: value}), [])


def test_layers_that_cannot_be_compressed_beside_each_other_are_named():
    fine = {
        "compressed": ["a"],
        "others": [],
        "sharing": [],
        "tiers": True,
    }
    check_layers(**fine)
    check_layers(**fine | {"others": ["window"], "tiers": False})
    for change, said in (
        ({"compressed": []}, "nothing to compress"),
        ({"sharing": ["z"]}, "z"),
        ({"others": ["window"]}, "differs by layer"),
        ({"hybrid": False}, "without --disable-hybrid"),
        ({"others": ["window"], "tiers": False, "hybrid": False}, "without --disable-hybrid"),
    ):
        with pytest.raises(UnsupportedEngine, match=said):
            check_layers(**fine | change)
