"""What a new user gets wrong in the first hour, and what is said of it: in one line, with the way
out. Commands' bad input is in tests/cli/test_bad_input.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch

import foveate
from foveate.errors import FoveateError
from foveate.hf import record
from tests import zoo
from tests.core.users import unchecked

IDS = torch.arange(5, 10).repeat(12)[None]  # says itself again, as lookup wants it
K = torch.zeros(1, 2, 40, 4)
MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "the wrong way round": (
        lambda model: foveate.compress("snapkv:budget=20%", model),
        "LlamaForCausalLM is no policy.*Pass the model first, then the policy",
    ),
    "a method that was not called": (
        lambda model: foveate.compress(model, foveate.snapkv),
        r"makes a policy when it is called: foveate.snapkv\(budget='20%'\)",
    ),
    "a policy that is a number": (
        lambda model: foveate.compress(model, 0.2),
        "this float is no policy. Give a spec, such as 'snapkv:budget=20%'",
    ),
    "a model's name": (
        lambda _: foveate.compress("llava-hf/llava-1.5-7b-hf", "snapkv:budget=20%"),
        "str is not a transformers model. Pass the PreTrainedModel itself",
    ),
    "a part of the model": (
        lambda model: foveate.compress(model.model, "snapkv:budget=20%"),
        "LlamaModel has no generate.*Pass the complete model",
    ),
    "a budget without its name": (
        lambda _: foveate.snapkv(0.2),
        r"takes its parameters by name: snapkv\(budget=0.2\)",
    ),
    "no budget": (
        lambda model: foveate.compress(model, "snapkv"),
        r"snapkv needs a budget: 'snapkv:budget=20%' as a spec, snapkv\(budget='20%'\) in Python",
    ),
    "kvpress's arguments": (
        lambda model: foveate.compress(model, method="mixkv", budget="20%"),
        r'method= is no argument of compress.*one spec: compress\(model, "mixkv:budget=20%"\)',
    ),
    "a budget beside the policy": (
        lambda model: foveate.compress(model, "snapkv:budget=30%", budget="20%"),
        r'budget= is no argument of compress.*compress\(model, "snapkv:budget=20%"\)',
    ),
    "a budget beside the tensors": (
        lambda _: foveate.compress_tensors("snapkv", [(K, K, K)], budget="20%"),
        r'budget= is no argument of compress_tensors.*: compress_tensors\("snapkv:budget=20%", lay',
    ),
    "a budget beside what is calibrated": (
        lambda model: foveate.calibrate(model, "prefixkv", [{"input_ids": IDS}], budget=0.2),
        r'budget= is no argument of calibrate.*: calibrate\(model, "prefixkv:budget=0.2", prompts',
    ),
    "a misspelt input": (
        lambda model: foveate.compress(model).prefill(input_ids=IDS, atention_mask=IDS > 0),
        "atention_mask= is read by no part of LlamaForCausalLM.*Did you mean attention_mask=?",
    ),
    "an input of something else": (
        lambda model: record(model, input_ids=IDS, budget=0.2),
        "budget= is read by no part of LlamaForCausalLM, which would ignore it. Leave it out",
    ),
    "a misspelt argument": (
        lambda model: foveate.compress(model, polcy="snapkv:budget=20%"),
        "polcy= is no argument of compress.*Did you mean policy=?",
    ),
    "a question without its context": (
        lambda model: asked_alone(model),
        r"this cache has read 60 tokens, .*input_ids=torch.cat\(\[context_ids, question_ids\]",
    ),
    "a title for a name": (lambda _: foveate.policy("SnapKV:budget=20%"), "mean 'snapkv'"),
    "a paper's spelling": (lambda _: foveate.policy("LOOK-M:budget=20%"), "mean 'lookm'"),
    "an amount alone": (lambda _: foveate.policy("snapkv:20%"), "mean budget=20%"),
    "a blank for a colon": (
        lambda _: foveate.policy("snapkv budget=20%"),
        "A colon stands between a method and its parameters: 'snapkv:budget=20%'",
    ),
    "another library's parameter": (
        lambda _: foveate.snapkv(budget="20%", window_size=16),
        "has no parameter 'window_size'. Did you mean 'window'",
    ),
    "20 for 20%": (
        lambda model: foveate.compress(model, "snapkv:budget=20", strict=True),
        "budget 20 is smaller than the 32 tokens.*For 20 % of the prompt write '20%'",
    ),
    "20.0 for 20": (lambda _: foveate.snapkv(budget=20.0), "For 20 tokens write the integer 20"),
    "no profile": (
        lambda _: foveate.policy("headkv:budget=20%"),
        "headkv needs a profile.*'foveate calibrate headkv --model MODEL' makes one",
    ),
    "a profile that is not there": (
        lambda _: foveate.policy("recommended:budget=20%,profile=recommended.safetensors"),
        "does not exist. Make one with 'foveate calibrate recommended --model MODEL'",
    ),
    "another model's profile": (
        lambda model: foveate.compress(model, f"headkv:budget=80%,profile={profile()}"),
        "is of the model 'LlavaForConditionalGeneration-30x576', not of 'LlamaForCausalLM.*Make",
    ),
    "results before there are any": (
        lambda model: foveate.compress(model, "snapkv:budget=20%").stats,
        r"no prompt has been read in this block yet: call model.generate\(...\)",
    ),
    "a block in a block": (lambda model: nested(model), "Leave that block first"),
    "tensors before the policy": (
        lambda _: foveate.compress_tensors([(K, K, K)], "snapkv:budget=20%"),
        "this list is no policy.*Pass one policy first, then the layers",
    ),
    "a tensor for a layer": (
        lambda _: foveate.compress_tensors("snapkv:budget=90%", [K]),
        r"layer 0 is a Tensor: give \(q, k, v\) of each layer",
    ),
    "one prompt for a list of prompts": (
        lambda model: foveate.calibrate(model, "recommended", {"input_ids": IDS}),
        "the inputs of one prompt: give a list of inputs",
    ),
    "texts for inputs": (
        lambda model: foveate.calibrate(model, "recommended", ["What is it?"]),
        "prompt 0 is a str: give a list of inputs",
    ),
    "what cannot be used with drafts": (
        lambda model: looked_up(model),
        "Use it without assisted.*or a policy that compresses layer by layer, such as 'snapkv",
    ),
}


def profile() -> str:
    from foveate_demo import PROFILES

    return str(PROFILES / "headkv.json")


def nested(model: Any) -> None:
    with foveate.compress(model), foveate.compress(model):
        pass


def asked_alone(model: Any) -> None:
    with foveate.compress(model, "snapkv:budget=80%") as session:
        context = session.prefill(input_ids=IDS)
        model.generate(
            input_ids=IDS[:, :5], past_key_values=session.fork(context), max_new_tokens=1
        )


def looked_up(model: Any) -> None:
    with foveate.compress(model):
        model.generate(input_ids=IDS, max_new_tokens=4, prompt_lookup_num_tokens=3)


@pytest.fixture(scope="module")
def model() -> Any:
    return zoo.build("llama")


@pytest.mark.parametrize("name", MISTAKES)
def test_it_is_said_in_a_line_with_the_way_out(name: str, model: Any) -> None:
    mistaken, said = MISTAKES[name]
    with pytest.raises(FoveateError, match=said) as found, unchecked():
        mistaken(model)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("name", ["SnapKV", "snap_kv", "SnapKVPress"])
def test_a_method_is_found_under_its_titles(name: str) -> None:
    with pytest.raises(AttributeError, match="Did you mean 'snapkv'"):
        getattr(foveate, name)


@pytest.mark.parametrize(
    ("family", "spec", "said"),
    [
        ("llama", "lookm:budget=50%", 1),
        ("llama", "mixkv+lookm:budget=50%,window=4", 1),
        ("llama", "mixkv:budget=50%,window=4", 0),  # the same for any tokens
        ("llava", "lookm:budget=50%", 0),  # which sees
    ],
)
def test_methods_about_images_on_a_model_without_any(
    family: str, spec: str, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    from foveate.hf.attach import model_policy

    model_policy._log_once.cache_clear()
    caplog.set_level(logging.INFO, logger="foveate")
    for _ in range(2):
        foveate.compress(zoo.build(family), spec)
    assert len(caplog.messages) == said
    assert all("LlamaForCausalLM reads text only" in one for one in caplog.messages)


def test_no_policy_is_the_one_to_begin_with(model: Any, caplog: pytest.LogCaptureFixture) -> None:
    with foveate.compress(model) as session:
        model.generate(input_ids=IDS, max_new_tokens=1)
    assert session.policy == foveate.recommended(budget="20%")
    assert session.stats.kept_tokens == pytest.approx(12)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
