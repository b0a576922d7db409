"""The tiny text families, and the text backbones of the vision-language ones."""

from __future__ import annotations

from typing import Any

from transformers import (
    DeepseekV3Config,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from .family import PAD, VOCAB, Family

HIDDEN = 64
"""Width of every text backbone."""

SIZE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": None,
}
"""The numbers all text backbones share; ``eos`` is unset so that nothing ends early."""


def llama_config() -> LlamaConfig:
    """Backbone of Llama, LLaVA, LLaVA-NeXT, Idefics3 and SmolVLM."""
    return LlamaConfig(**SIZE)


def mistral_config() -> MistralConfig:
    """Mistral without its sliding window: every layer is a full one."""
    return MistralConfig(**SIZE, sliding_window=None)


def sliding_config() -> MistralConfig:
    """Mistral with a sliding window in every layer."""
    return MistralConfig(**SIZE, sliding_window=16)


def qwen2_config() -> Qwen2Config:
    """Backbone of Qwen2, InternVL3 and LLaVA-OneVision."""
    return Qwen2Config(**SIZE)


def qwen3_config() -> Qwen3Config:
    """Qwen3: queries and keys are normalised per head."""
    return Qwen3Config(**SIZE, head_dim=16)


def gemma_config() -> GemmaConfig:
    """Backbone of PaliGemma."""
    return GemmaConfig(**SIZE, head_dim=16)


def gemma3_config() -> Gemma3TextConfig:
    """Gemma 3 with two sliding and two full layers, and a window shorter than most prompts."""
    return Gemma3TextConfig(
        **SIZE | {"num_hidden_layers": 4},
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=24,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )


def deepseek_v3_config() -> DeepseekV3Config:
    """Multi-head latent attention: the cache stores latents and rotary keys."""
    return DeepseekV3Config(
        **SIZE | {"num_key_value_heads": 4},
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=16,
        q_lora_rank=24,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
        num_mtp_layers=0,
    )


TEXT = (
    Family("llama", lambda: LlamaForCausalLM(llama_config())),
    Family("mistral", lambda: MistralForCausalLM(mistral_config())),
    Family("qwen2", lambda: Qwen2ForCausalLM(qwen2_config())),
    Family("qwen3", lambda: Qwen3ForCausalLM(qwen3_config())),
    Family("gemma3_text", lambda: Gemma3ForCausalLM(gemma3_config())),
)
"""Text families that must work."""

REFUSED = (Family("sliding", lambda: MistralForCausalLM(sliding_config())),)
"""Families built only to show that they are refused."""
