"""Tiny random models of two layers, that read text alone; vLLM and transformers load them."""

import torch
from transformers import Gemma4ForCausalLM, Gemma4TextConfig, LlamaConfig, LlamaForCausalLM

from tests.serving.engine import prompts

VOCABULARY = 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def drawn(lengths, seed=0):
    """Prompts of the few tokens that these models know."""
    return [[3 + token % (VOCABULARY - 3) for token in one] for one in prompts(lengths, seed)]


def llama(folder):
    """Llama: 4 query heads, 2 KV heads."""
    return _saved(LlamaForCausalLM, LlamaConfig(**SIZES, initializer_range=0.5), folder)


def gemma4(folder):
    """Gemma 4, its text alone: a layer with a window, and one of full attention. Their heads have
    two sizes, and so have the blocks of their KV cache groups: where 32 tokens are asked for, the
    window's have 64.
    """
    config = Gemma4TextConfig(
        **SIZES,
        global_head_dim=64,
        sliding_window=64,
        hidden_size_per_layer_input=0,
        num_kv_shared_layers=0,
        layer_types=["sliding_attention", "full_attention"],
        initializer_range=0.3,
    )
    return _saved(Gemma4ForCausalLM, config, folder)


def _saved(model, config, folder):
    torch.manual_seed(0)
    model(config).float().eval().save_pretrained(folder)
    return str(folder)
