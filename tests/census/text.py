"""The text types, and what the generic sizes do not say about them."""

from __future__ import annotations

from .shrink import DROP
from .specimen import Entry

_NAMES = """
    axk1 bailing_hybrid bloom cohere2 deepseek_v2 deepseek_v3 ernie4_5 exaone4 falcon gemma gemma2
    gemma3_text gemma4_text glm4 glm4_moe glm4_moe_lite gpt2 gpt_neox gpt_oss granite
    granitemoehybrid jamba kimi_linear lfm2 llama llama4_text longcat_flash mamba2 minicpm3
    minimax_m2 ministral3 mistral mixtral nemotron_h olmo2 olmo3 opt phi phi3 qwen2 qwen3
    qwen3_5_text qwen3_moe qwen3_next sarvam_mla smollm3 stablelm starcoder2 youtu
    """

TEXT: tuple[str, ...] = tuple(_NAMES.split())
"""Text types in wide use, whether or not they exist here."""

_TWO_KINDS = ["linear_attention", "full_attention"] * 2
"""Recurrent and full layers in turn."""

_MIXED_EXPERTS = {
    "num_hidden_layers": 4,
    "layer_types": _TWO_KINDS,
    "mlp_layer_types": ["dense", "sparse"] * 2,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
}

ENTRIES: dict[str, Entry] = {
    "bailing_hybrid": Entry(overrides=_MIXED_EXPERTS),
    "deepseek_v2": Entry(overrides={"num_experts_per_tok": 2, "first_k_dense_replace": 1}),
    "gemma4_text": Entry(overrides={"global_head_dim": 32}),
    "granitemoehybrid": Entry(
        overrides={
            "num_hidden_layers": 4,
            "layer_types": _TWO_KINDS,
            "mamba_n_heads": 8,
            "mamba_n_groups": 2,
            "mamba_chunk_size": 8,
        }
    ),
    "jamba": Entry(
        overrides={
            "num_hidden_layers": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 3,
        },
        single=True,
    ),
    "kimi_linear": Entry(overrides=_MIXED_EXPERTS),
    "lfm2": Entry(
        overrides={"num_hidden_layers": 4, "layer_types": ["conv", "full_attention"] * 2}
    ),
    "llama4_text": Entry(overrides={"moe_layers": [1]}),
    # Several tokens at once on a cache that holds some begin anew in the recurrence of torch.
    "mamba2": Entry(overrides={"num_heads": 8, "state_size": 8}, single=True),
    "nemotron_h": Entry(overrides={"layers_block_type": DROP}),
}
"""Entries by type."""
