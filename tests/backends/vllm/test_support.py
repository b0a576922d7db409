"""Models that cannot be compressed exactly are refused by what stands in the way; without vLLM."""

from types import SimpleNamespace

import pytest

from foveate.errors import UnsupportedEngine
from foveate.vllm.startup.support import check_attention, check_model


def model(**changes):
    plain = {
        "is_encoder_decoder": False,
        "runner_type": "generate",
        "enable_prompt_embeds": False,
    }
    return SimpleNamespace(**plain | changes)


def test_plain_models_are_accepted():
    check_model(model())


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("is_encoder_decoder", True, "encoder-decoder"),
        ("runner_type", "pooling", "pooling"),
        ("enable_prompt_embeds", True, "enable-prompt-embeds"),
    ],
)
def test_models_that_do_not_fit_are_named(name, value, said):
    with pytest.raises(UnsupportedEngine, match=said):
        check_model(model(**{name: value}))


def layer(head_size_v=64, **changes):
    plain = {"alibi_slopes": None, "logits_soft_cap": 0, "sinks": None, "attn_type": "decoder"}
    impl = SimpleNamespace(**plain | changes)
    return SimpleNamespace(impl=impl, head_size=64, head_size_v=head_size_v)


def test_plain_attention_is_accepted():
    check_attention({"a": layer(), "b": layer(logits_soft_cap=50.0), "c": layer(sinks=[0.0])})


def test_a_budget_by_head_does_not_go_with_sinks():
    with pytest.raises(UnsupportedEngine, match="of a has sinks, and a budget by KV head"):
        check_attention({"a": layer(sinks=[0.0])}, by_head=True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"alibi_slopes": [0.5]}, "ALiBi"),
        ({"attn_type": "encoder_decoder"}, "encoder_decoder"),
        ({"head_size_v": 32}, "32"),
    ],
)
def test_attention_that_the_scores_do_not_see_is_named_with_its_layer(changes, said):
    with pytest.raises(UnsupportedEngine, match=f"model.layers.1.*{said}"):
        check_attention({"model.layers.0": layer(), "model.layers.1": layer(**changes)})
