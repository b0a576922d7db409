"""A policy is all that an engine's arguments need, and nothing is served stock without a word."""

import sys
from types import SimpleNamespace

import pytest

from foveate.errors import FoveateError, InvalidInput, InvalidParameter, UnsupportedEngine
from foveate.vllm.plans.context_warning import shortest, warning_of
from foveate.vllm.plans.gap import Room
from foveate.vllm.plans.plans import Offer
from foveate.vllm.plans.settings import settings_from
from foveate.vllm.startup.activation import activate
from foveate.vllm.startup.config_checks import check_foreseen
from foveate.vllm.startup.options import CLASSES, SCHEDULER, WORKER

POLICY = "mixkv:budget=20%,window=8"
ENVIRON = {"FOVEATE_POLICY": POLICY}
OURS = {"foveate": {"policy": POLICY}}


def arguments(**changes):
    """What is read of vLLM's EngineArgs."""
    plain = {
        "worker_cls": "auto",
        "scheduler_cls": None,
        "additional_config": {},
        "speculative_config": None,
        "spec_method": None,
        "spec_model": None,
        "pipeline_parallel_size": 1,
        "decode_context_parallel_size": 1,
        "prefill_context_parallel_size": 1,
        "enable_dbo": False,
        "ubatch_size": 0,
        "disable_chunked_mm_input": False,
        "kv_cache_dtype": "auto",
    }
    return SimpleNamespace(**plain | changes)


@pytest.mark.parametrize(
    ("given", "environ"),
    [
        ({}, ENVIRON),
        ({"additional_config": None}, ENVIRON),
        ({"additional_config": OURS}, {}),
        ({"additional_config": OURS, "worker_cls": CLASSES[WORKER]}, {}),
        ({"scheduler_cls": CLASSES[SCHEDULER]}, ENVIRON),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, ENVIRON),
        ({"speculative_config": {"model": "m"}}, ENVIRON),
        ({"spec_method": "mimo_mtp", "spec_model": "m"}, {"FOVEATE_POLICY": "rkv:budget=64"}),
    ],
)
def test_a_policy_sets_whatever_is_missing_once_and_again(given, environ):
    args = arguments(**given)
    for _ in range(2):
        spec = environ.get("FOVEATE_POLICY", POLICY)
        activate(args, environ)
        assert (args.worker_cls, args.scheduler_cls) == tuple(CLASSES.values())
        assert args.additional_config == {"foveate": {"policy": spec}}


def test_other_settings_stay_beside_the_policy():
    args = arguments(additional_config={"other": 1, "foveate": {"tiers": 2}})
    assert activate(args, ENVIRON).tiers == 2
    assert args.additional_config == {"other": 1, "foveate": {"policy": POLICY, "tiers": 2}}


def test_an_engine_that_nobody_asks_foveate_for_is_vllms_own():
    args = arguments(worker_cls="my.Worker", additional_config={"other": 1})
    before = dict(vars(args))
    assert activate(args, {}) is None
    assert vars(args) == before


@pytest.mark.parametrize(
    ("given", "environ", "said"),
    [
        ({}, {"FOVEATE_POLICY": " "}, "FOVEATE_POLICY is set, but empty"),
        ({}, {"FOVEATE_POLICY": "mixvk:budget=20%"}, "Did you mean 'mixkv'"),
        ({"worker_cls": CLASSES[WORKER]}, {}, "started without a policy"),
        ({"scheduler_cls": CLASSES[SCHEDULER]}, {}, "started without a policy"),
        ({"worker_cls": "my.Worker"}, ENVIRON, "--worker-cls 'my.Worker' beside a policy"),
        ({"scheduler_cls": "my.Own", "additional_config": OURS}, {}, "--scheduler-cls 'my.Own'"),
        ({"speculative_config": {"method": "x"}}, ENVIRON, r"by 'x' \(--speculative-config\)"),
        ({"spec_method": "medusa"}, ENVIRON, r"by 'medusa' \(--spec-method\): of its methods"),
    ],
)
def test_what_is_in_the_way_is_said_as_it_was_given(given, environ, said):
    args = arguments(**given)
    with pytest.raises(FoveateError, match=said):
        activate(args, environ)


@pytest.mark.parametrize(
    "words",
    [
        ["--additional-config", '{"foveate": {"policy": "full"}}', "--additional_config={}"],
        ["--additional-config", '{"a": 1}', "--additional-config.foveate.policy", "full"],
        ["--worker-cls", CLASSES[WORKER], "--worker-cls", "my.Worker"],
        ["--config", "FILE", "--additional-config", '{"a": 1}'],
    ],
)
def test_an_option_that_stands_twice_is_refused_where_a_policy_would_be_lost(
    monkeypatch, tmp_path, words
):
    file = tmp_path / "options.yaml"
    file.write_text("port: 1\nadditional-config:\n  foveate:\n    policy: full\n")
    words = [str(file) if word == "FILE" else word for word in words]
    monkeypatch.setattr(sys, "argv", ["vllm", "serve", "m", *words])
    with pytest.raises(InvalidInput, match="silently ignore all but the last"):
        activate(arguments(), {})


def test_parts_of_one_setting_and_options_of_others_may_stand_more_than_once(monkeypatch):
    policy = [
        "--additional-config.foveate.policy",
        POLICY,
        "--additional-config.foveate.tiers",
        "2",
    ]
    monkeypatch.setattr(sys, "argv", ["vllm", *policy, "--worker-cls", "a", "--worker-cls", "b"])
    assert activate(arguments(additional_config=OURS), {}) is not None


def model(window=None, one_kind=False, **changes):
    text = SimpleNamespace(**{"model_type": "llama"} | changes)
    return SimpleNamespace(
        model_config=SimpleNamespace(model="tiny", hf_text_config=text),
        cache_config=SimpleNamespace(sliding_window=window),
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=one_kind),
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "bloom"}, "tiny has a bias that grows with distance"),
        ({"alibi": True}, "ALiBi"),
        ({"attn_config": SimpleNamespace(alibi=True)}, "ALiBi"),
        ({"num_kv_shared_layers": 3}, "3 layers that read the cache of an earlier one"),
        ({"layer_types": ["sliding_attention", "mamba"]}, "no layer of this model holds"),
        ({"window": 64}, "no layer of this model holds"),
    ],
)
def test_models_are_refused_by_their_configuration(changes, said):
    policies = settings_from(OURS, {}).policies
    check_foreseen(model(layer_types=["sliding_attention", "full_attention"]), policies)
    with pytest.raises(UnsupportedEngine, match=said):
        check_foreseen(model(**changes), policies)


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("pyramidkv:budget=20%", "a budget that differs by layer"),
        (POLICY, "without --disable-hybrid"),
    ],
)
def test_windows_are_seen_before_anything_starts(policy, said):
    """Beside them all layers keep the same number; not where vLLM leaves the windows out."""
    policies = settings_from({"foveate": {"policy": policy}}, {}).policies
    turns = {"layer_types": ["sliding_attention", "full_attention"]}
    one_kind = "--disable-hybrid" in said
    with pytest.raises(UnsupportedEngine, match=said):
        check_foreseen(model(one_kind=one_kind, **turns), policies)
    check_foreseen(model(one_kind=one_kind, sliding_window=None, **turns), policies)


def test_tiers_need_groups_of_several_kinds():
    policies = settings_from({"foveate": {"policy": "pyramidkv:budget=20%"}}, {}).policies
    with pytest.raises(UnsupportedEngine, match="without --disable-hybrid"):
        check_foreseen(model(one_kind=True), policies)


def test_a_context_too_short_for_a_block_to_become_free_is_said():
    offer, least = Offer(settings_from(OURS, {})), 256  # of which 205 leave, more than a block
    room = Room.of(offer.policy(0, None).amount, 8)
    assert shortest(room, 128, 4096) == least
    assert shortest(room, 128, 255) is None

    def said(tokens, asked=None):
        return warning_of(offer.plan({"foveate_context": tokens} | (asked or {}), 4096), 128, 4096)

    assert f"foveate_context=200 is too short: {POLICY} frees a block of 128 tokens" in said(200)
    assert "from 256 tokens on" in said(200)
    assert "kept whole" in said(100)
    assert said(least) == said(200, {"foveate_policy": "full"}) == ""
    assert warning_of(offer.plan({}, 200), 128, 4096) == ""
    with pytest.raises(InvalidParameter):
        said(5000)
