"""Which models can be compressed exactly inside vLLM, and why not otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foveate.errors import UnsupportedEngine

DECODER = "decoder"


def check_model(config: Any) -> None:
    """Refuses models whose prompts are not what a policy takes them for.

    ``config`` is a ``ModelConfig``. Where image tokens attend in both directions, vLLM's CPU
    attention is causal all the same, and the scores would be as well.

    Raises:
        UnsupportedEngine: the message says what the model, or the setting, is.
    """
    refused = {
        "an encoder-decoder model: its answers attend to an encoder, whose cache is none of a "
        "prompt's": config.is_encoder_decoder,
        "a model whose image tokens attend to each other in both directions (PrefixLM), which the "
        "scores do not see": config.is_mm_prefix_lm,
        "a model that returns no tokens (--runner pooling), whose cache is read by none": (
            config.runner_type != "generate"
        ),
        "prompts given as embeddings (--enable-prompt-embeds), as nothing tells which of them are "
        "visual": config.enable_prompt_embeds,
    }
    for what, found in refused.items():
        if found:
            raise UnsupportedEngine(f"Foveate's worker cannot serve {what}.")


def check_attention(layers: Mapping[str, Any]) -> None:
    """Refuses layers whose attention is more than a softmax of scaled products.

    The scores of policies are computed from queries and keys alone. ``layers`` are vLLM's
    attention layers by name, those that would be compressed.

    Raises:
        UnsupportedEngine: names the layer, and what its attention adds.
    """
    for name, layer in layers.items():
        impl = layer.impl
        refused = {
            "a bias that grows with distance (ALiBi)": impl.alibi_slopes is not None,
            "a soft cap of its logits": bool(impl.logits_soft_cap),
            "sinks": getattr(impl, "sinks", None) is not None,
            f"attention of the kind {impl.attn_type!r}": impl.attn_type != DECODER,
            f"values of another size ({layer.head_size_v}) than keys ({layer.head_size})": (
                layer.head_size_v != layer.head_size
            ),
        }
        for what, found in refused.items():
            if found:
                raise UnsupportedEngine(
                    f"the attention of {name} has {what}, which the scores and pages of Foveate's "
                    "worker do not model. This model cannot be compressed."
                )


def check_new(names: set[str], known: Mapping[str, Any]) -> None:
    """Refuses requests whose prompt grows after an answer (streamed input), by their names.

    Their blocks were freed by the length that the prompt had before.

    Raises:
        UnsupportedEngine: a new request of the scheduler's that is ``known`` already.
    """
    again = sorted(names & known.keys())
    if again:
        raise UnsupportedEngine(
            f"the prompt of request {again[0]} goes on after an answer (streamed input), and a "
            "compressed prompt cannot grow. Send every turn as a request of its own."
        )
