"""The model that ``record_kvpress.py`` has read, and what its layers make of a prompt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

TOKENS, LAYERS, HEADS, GROUPS, SIZE, VOCAB = 61, 2, 2, 2, 16, 64
Pass = dict[str, Tensor]


def drawn_model(folder: str) -> LlamaForCausalLM:
    """Layers of drawn weights, with a tokenizer in ``folder``, where KVzip looks for one."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HEADS * GROUPS * SIZE,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS * GROUPS,
        num_key_value_heads=HEADS,
        head_dim=SIZE,
        initializer_range=0.15,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).eval()
    model.config.name_or_path = folder
    for layer in model.model.layers:  # the first KV head looks everywhere, the other at few tokens
        layer.self_attn.q_proj.weight.data.view(HEADS, -1)[0] *= 0.4
        layer.self_attn.q_proj.weight.data.view(HEADS, -1)[1] *= 1.5
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    return model


def drawn_prompt() -> Tensor:
    """Tokens that all differ, so that values tell where they stood."""
    return torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))[None, :TOKENS]


@contextmanager
def watched(model: LlamaForCausalLM) -> Iterator[list[Pass]]:
    """One entry for every pass of a layer: its hidden states, and q and k round the rotation."""
    seen: list[Pass] = []

    def note(module: Any, _: Any, kwargs: dict[str, Any], output: Any) -> None:
        hidden, (cos, sin) = kwargs["hidden_states"], kwargs["position_embeddings"]
        q, k, v = (
            project(hidden).view(*hidden.shape[:2], -1, SIZE).transpose(1, 2)
            for project in (module.q_proj, module.k_proj, module.v_proj)
        )
        names = ("hidden", "q_before", "k_before", "q", "k", "v", "cos", "sin")
        found = (hidden, q, k, *apply_rotary_pos_emb(q, k, cos, sin), v, cos, sin)
        seen.append({name: t[0].clone() for name, t in zip(names, found, strict=True)})
        if output[1] is not None:
            seen[-1]["attention"] = output[1][0].clone()

    layers = model.model.layers
    hooks = [layer.self_attn.register_forward_hook(note, with_kwargs=True) for layer in layers]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def together(passes: list[Pass], *names: str) -> Pass:
    """Of all layers, in one tensor each."""
    return {name: torch.stack([one[name] for one in passes]).contiguous() for name in names}


@contextmanager
def eager(model: LlamaForCausalLM) -> Iterator[None]:
    """Attention that returns its weights."""
    model.set_attn_implementation("eager")
    yield
    model.set_attn_implementation("sdpa")


@contextmanager
def unrotated(model: LlamaForCausalLM) -> Iterator[None]:
    """Positions turn nothing."""
    rotary = model.model.rotary_emb
    turn = rotary.forward

    def standing(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = turn(x, position_ids)
        return torch.ones_like(cos), torch.zeros_like(sin)

    rotary.forward = standing
    yield
    rotary.forward = turn


def inputs(model: LlamaForCausalLM) -> Pass:
    """What one reading of the prompt gives every press."""
    with watched(model) as seen:
        model.model(input_ids=drawn_prompt())
    found = together(seen, "hidden", "q_before", "k_before", "q", "k", "v")
    found |= {name: seen[0][name] for name in ("cos", "sin")}
    with eager(model), watched(model) as seen:
        model.model(input_ids=drawn_prompt())
    found |= together(seen, "attention")
    found["o_proj"] = torch.stack([x.self_attn.o_proj.weight for x in model.model.layers])
    return found
