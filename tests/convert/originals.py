"""Tiny random checkpoints in their authors' layouts."""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

State = dict[str, Tensor]
Shapes = dict[str, tuple[int, ...]]

WIDTH, INNER, LAYERS, HEADS = 64, 96, 2, 4
EYE, EYE_INNER, EYE_LAYERS, EYE_HEADS = 32, 48, 3, 2
KV_HEADS = 2  # of InternLM2
LETTERS = "\u2581abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,:?'"
WORDS = ("\u2581t", "\u2581th", "he", "in", "\u2581a", "\u2581the", "er")
PIECES = 3 + 256 + len(LETTERS) + len(WORDS)
LLAVA_VOCAB = PIECES
INTERN_SPECIAL = ("<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>")
INTERN_VOCAB = PIECES + len(INTERN_SPECIAL)
QWEN_MERGED = (b"th", b"the", b" a", b"in", b"er", b" the")
QWEN_VOCAB = 256 + len(QWEN_MERGED) + 217
QWEN_WIDTH = 256  # the resampler's heads are 128 wide

TEXT: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def drawn(shapes: Shapes, name: str) -> State:
    """Random weights of these shapes, none at a neutral value."""
    state = {}
    for path, shape in shapes.items():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{path}".encode()))
        noise = torch.randn(shape, generator=generator)
        norm = (len(shape) == 1 and path.endswith("weight")) or "norm" in path or ".ln_" in path
        scale = 1.2 / math.sqrt(math.prod(shape[1:])) if len(shape) > 1 else 0.1
        state[path] = 1 + 0.1 * noise if norm and path.endswith("weight") else scale * noise
    return state


def save(folder: Path, config: dict[str, Any], state: State, shards: int = 1) -> Path:
    """Writes configuration and weights, as .bin or, in several shards, as safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        torch.save(state, folder / "pytorch_model.bin")
        return folder
    places = {}
    for number in range(shards):
        part = dict(list(state.items())[number::shards])
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        save_file(part, folder / name, metadata={"format": "pt"})
        places |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def llava(folder: Path) -> State:
    """LLaVA-1.5, without its tower, which is written to ``folder / "clip"``."""
    state = drawn(llama_shapes(LLAVA_VOCAB) | _mlp("model.mm_projector."), "llava")
    config = TEXT | {
        "architectures": ["LlavaLlamaForCausalLM"],
        "model_type": "llava",
        "vocab_size": LLAVA_VOCAB,
        "mm_projector_type": "mlp2x_gelu",
        "mm_vision_tower": "openai/clip-tiny",
        "mm_vision_select_layer": -2,
        "mm_vision_select_feature": "patch",
        "mm_use_im_start_end": False,
        "mm_use_im_patch_token": False,
        "image_aspect_ratio": "pad",
        "torch_dtype": "float32",
    }
    save(folder, config, state)
    sentencepiece(folder)
    return state | clip(folder / "clip", 12, 4, "model.vision_tower.vision_tower.")


def mobilevlm(folder: Path) -> State:
    """MobileVLM V2, whose weights have the tower; its sizes are in ``folder / "clip"``."""
    project = {
        f"model.mm_projector.{name}": shape
        for name, shape in {
            "mlp.mlp.0.weight": (WIDTH, EYE),
            "mlp.mlp.0.bias": (WIDTH,),
            "mlp.mlp.2.weight": (WIDTH, WIDTH),
            "mlp.mlp.2.bias": (WIDTH,),
            "peg.peg.0.weight": (WIDTH, 1, 3, 3),
            "peg.peg.0.bias": (WIDTH,),
        }.items()
    }
    state = drawn(llama_shapes(LLAVA_VOCAB) | project, "mobilevlm")
    state |= clip(folder / "clip", 48, 2, "model.vision_tower.vision_tower.")
    config = TEXT | {
        "architectures": ["MobileLlamaForCausalLM"],
        "model_type": "mobilevlm",
        "vocab_size": LLAVA_VOCAB,
        "mm_projector_type": "ldpnetv2",
        "mm_vision_tower": "openai/clip-tiny",
        "vision_tower_type": "clip",
        "mm_vision_select_layer": -2,
        "image_aspect_ratio": "pad",
        "torch_dtype": "float32",
    }
    save(folder, config, state, shards=2)
    sentencepiece(folder)
    return state


def clip(folder: Path, image: int, patch: int, prefix: str) -> State:
    """A CLIP, as openai's: its text half is not needed. Returned under the names in a LLaVA."""
    seen = "vision_model."
    shapes: Shapes = {
        f"{seen}embeddings.class_embedding": (EYE,),
        f"{seen}embeddings.patch_embedding.weight": (EYE, 3, patch, patch),
        f"{seen}embeddings.position_embedding.weight": ((image // patch) ** 2 + 1, EYE),
    }
    for name in ("pre_layrnorm", "post_layernorm"):
        shapes |= _linear(f"{seen}{name}.", EYE)
    for layer in range(EYE_LAYERS):
        at = f"{seen}encoder.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= _linear(f"{at}self_attn.{name}.", EYE, EYE)
        shapes |= _linear(f"{at}layer_norm1.", EYE) | _linear(f"{at}layer_norm2.", EYE)
        shapes |= _linear(f"{at}mlp.fc1.", EYE_INNER, EYE) | _linear(
            f"{at}mlp.fc2.", EYE, EYE_INNER
        )
    state = drawn(shapes, "clip")
    vision = {
        "hidden_size": EYE,
        "intermediate_size": EYE_INNER,
        "num_hidden_layers": EYE_LAYERS,
        "num_attention_heads": EYE_HEADS,
        "image_size": image,
        "patch_size": patch,
    }
    whole = state | {"logit_scale": torch.ones(()), "visual_projection.weight": torch.ones(4, EYE)}
    whole[f"{seen}embeddings.position_ids"] = torch.arange((image // patch) ** 2 + 1)[None]
    save(folder, {"model_type": "clip", "vision_config": vision}, whole)
    return {f"{prefix}{name}": tensor for name, tensor in state.items()}


def internvl(folder: Path, text: str = "InternLM2ForCausalLM") -> State:
    """InternVL-Chat 1.5: InternViT with InternLM2, or with a Llama."""
    intern = text.startswith("InternLM2")
    words = _internlm2_shapes() if intern else _prefixed("language_model.", INTERN_VOCAB)
    patches, seen = 36, "vision_model."
    shapes: Shapes = {
        f"{seen}embeddings.class_embedding": (1, 1, EYE),
        f"{seen}embeddings.position_embedding": (1, patches + 1, EYE),
        f"{seen}embeddings.patch_embedding.weight": (EYE, 3, 4, 4),
        f"{seen}embeddings.patch_embedding.bias": (EYE,),
    }
    for layer in range(EYE_LAYERS):
        at = f"{seen}encoder.layers.{layer}."
        shapes |= {f"{at}attn.qkv.weight": (3 * EYE, EYE)} | _linear(f"{at}attn.proj.", EYE, EYE)
        for name in ("attn.q_norm", "attn.k_norm", "norm1", "norm2"):
            shapes[f"{at}{name}.weight"] = (EYE,)
        shapes |= {f"{at}ls1": (EYE,), f"{at}ls2": (EYE,)}
        shapes |= _linear(f"{at}mlp.fc1.", EYE_INNER, EYE)
        shapes |= _linear(f"{at}mlp.fc2.", EYE, EYE_INNER)
    shapes |= _linear("mlp1.0.", 4 * EYE) | _linear("mlp1.1.", WIDTH, 4 * EYE)
    shapes |= _linear("mlp1.3.", WIDTH, WIDTH)
    state = drawn(words | shapes, "internvl")
    state |= {n: 1 + t for n, t in state.items() if n.endswith((".ls1", ".ls2"))}
    config = {
        "architectures": ["InternVLChatModel"],
        "model_type": "internvl_chat",
        "downsample_ratio": 0.5,
        "dynamic_image_size": True,
        "use_thumbnail": True,
        "min_dynamic_patch": 1,
        "max_dynamic_patch": 12,
        "force_image_size": 24,
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internlm2-chat" if intern else "vicuna_v1.1",
        "torch_dtype": "float32",
        "llm_config": TEXT
        | {
            "architectures": [text],
            "vocab_size": INTERN_VOCAB,
            "rope_theta": 1000000,
            "bias": False,
        }
        | ({"num_key_value_heads": KV_HEADS} if intern else {})
        | ({"rope_scaling": {"type": "dynamic", "factor": 2.0}} if intern else {}),
        "vision_config": {
            "hidden_size": EYE,
            "intermediate_size": EYE_INNER,
            "num_hidden_layers": EYE_LAYERS,
            "num_attention_heads": EYE_HEADS,
            "image_size": 24,
            "patch_size": 4,
            "qk_normalization": True,
            "qkv_bias": False,
            "norm_type": "rms_norm",
            "layer_norm_eps": 1e-6,
        },
    }
    save(folder, config, state, shards=3)
    sentencepiece(folder)
    added = {str(PIECES + i): {"content": name} for i, name in enumerate(INTERN_SPECIAL)}
    words_of = {"added_tokens_decoder": added, "pad_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(words_of))
    return state


def qwen_vl(folder: Path, chat_format: str = "chatml") -> State:
    """Qwen-VL."""
    shapes: Shapes = {
        "transformer.wte.weight": (QWEN_VOCAB, QWEN_WIDTH),
        "transformer.ln_f.weight": (QWEN_WIDTH,),
        "lm_head.weight": (QWEN_VOCAB, QWEN_WIDTH),
    }
    for layer in range(LAYERS):
        at = f"transformer.h.{layer}."
        shapes |= _linear(f"{at}attn.c_attn.", 3 * QWEN_WIDTH, QWEN_WIDTH)
        shapes[f"{at}attn.c_proj.weight"] = (QWEN_WIDTH, QWEN_WIDTH)
        shapes |= {f"{at}ln_{n}.weight": (QWEN_WIDTH,) for n in (1, 2)}
        shapes |= {f"{at}mlp.w{n}.weight": (INNER, QWEN_WIDTH) for n in (1, 2)}
        shapes[f"{at}mlp.c_proj.weight"] = (QWEN_WIDTH, INNER)
    state = drawn(shapes | _qwen_eye(), "qwen_vl")
    config = {
        "architectures": ["QWenLMHeadModel"],
        "model_type": "qwen",
        "vocab_size": QWEN_VOCAB,
        "hidden_size": QWEN_WIDTH,
        "intermediate_size": 2 * INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "kv_channels": QWEN_WIDTH // HEADS,
        "seq_length": 512,
        "max_position_embeddings": 8192,
        "layer_norm_epsilon": 1e-6,
        "rotary_emb_base": 10000,
        "rotary_pct": 1.0,
        "no_bias": True,
        "torch_dtype": "float32",
        "visual": {
            "heads": EYE_HEADS,
            "image_size": 32,
            "image_start_id": QWEN_VOCAB - 3,
            "layers": EYE_LAYERS,
            "mlp_ratio": EYE_INNER / EYE,
            "n_queries": 16,
            "output_dim": QWEN_WIDTH,
            "patch_size": 4,
            "width": EYE,
        },
    }
    save(folder, config, state)
    table = [bytes([byte]) for byte in range(256)] + list(QWEN_MERGED)
    lines = [f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(table)]
    (folder / "qwen.tiktoken").write_text("\n".join(lines))
    settings = {"chat_format": chat_format, "eos_token_id": QWEN_VOCAB - 217}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return state


def llama_shapes(vocab: int) -> Shapes:
    """A Llama's."""
    shapes: Shapes = {
        "model.embed_tokens.weight": (vocab, WIDTH),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (vocab, WIDTH),
    }
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}self_attn.{n}_proj.weight": (WIDTH, WIDTH) for n in "qkvo"}
        shapes |= {f"{at}mlp.{n}_proj.weight": (INNER, WIDTH) for n in ("gate", "up")}
        shapes[f"{at}mlp.down_proj.weight"] = (WIDTH, INNER)
        shapes |= {f"{at}{n}_layernorm.weight": (WIDTH,) for n in ("input", "post_attention")}
    return shapes


def sentencepiece(folder: Path) -> None:
    """A ``tokenizer.model``: byte-pair encoding with bytes to fall back on."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces += [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]
    merged = [(word, -float(rank), 1) for rank, word in enumerate(WORDS)]
    pieces += merged + [(letter, -100.0 - rank, 1) for rank, letter in enumerate(LETTERS)]
    data = b"".join(_message(1, _piece(*piece)) for piece in pieces)
    data += _message(2, _number(3, 2)) + _message(3, _number(3, 1))
    (folder / "tokenizer.model").write_bytes(data)


def _piece(text: str, score: float, kind: int) -> bytes:
    return _message(1, text.encode()) + b"\x15" + struct.pack("<f", score) + _number(3, kind)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def _linear(at: str, *shape: int) -> Shapes:
    return {f"{at}weight": shape, f"{at}bias": shape[:1]}


def _mlp(at: str) -> Shapes:
    return _linear(f"{at}0.", WIDTH, EYE) | _linear(f"{at}2.", WIDTH, WIDTH)


def _prefixed(prefix: str, vocab: int) -> Shapes:
    return {f"{prefix}{name}": shape for name, shape in llama_shapes(vocab).items()}


def _internlm2_shapes() -> Shapes:
    shapes: Shapes = {
        "language_model.model.tok_embeddings.weight": (INTERN_VOCAB, WIDTH),
        "language_model.model.norm.weight": (WIDTH,),
        "language_model.output.weight": (INTERN_VOCAB, WIDTH),
    }
    for layer in range(LAYERS):
        at = f"language_model.model.layers.{layer}."
        rows = (HEADS + 2 * KV_HEADS) * WIDTH // HEADS
        shapes |= {f"{at}attention.wqkv.weight": (rows, WIDTH)}
        shapes |= {f"{at}attention.wo.weight": (WIDTH, WIDTH)}
        shapes |= {f"{at}feed_forward.w{n}.weight": (INNER, WIDTH) for n in (1, 3)}
        shapes |= {f"{at}feed_forward.w2.weight": (WIDTH, INNER)}
        shapes |= {f"{at}{n}_norm.weight": (WIDTH,) for n in ("attention", "ffn")}
    return shapes


def _qwen_eye() -> Shapes:
    seen = "transformer.visual."
    shapes: Shapes = {
        f"{seen}positional_embedding": (256, EYE),
        f"{seen}proj": (QWEN_WIDTH, QWEN_WIDTH),
        f"{seen}conv1.weight": (EYE, 3, 4, 4),
        f"{seen}attn_pool.pos_embed": (16, QWEN_WIDTH),
        f"{seen}attn_pool.query": (16, QWEN_WIDTH),
        f"{seen}attn_pool.kv_proj.weight": (QWEN_WIDTH, EYE),
        f"{seen}attn_pool.attn.in_proj_weight": (3 * QWEN_WIDTH, QWEN_WIDTH),
        f"{seen}attn_pool.attn.in_proj_bias": (3 * QWEN_WIDTH,),
    }
    shapes |= _linear(f"{seen}attn_pool.attn.out_proj.", QWEN_WIDTH, QWEN_WIDTH)
    for name, size in (("ln_q", QWEN_WIDTH), ("ln_kv", QWEN_WIDTH)):
        shapes |= _linear(f"{seen}attn_pool.{name}.", size)
    shapes |= _linear(f"{seen}ln_pre.", EYE) | _linear(f"{seen}ln_post.", QWEN_WIDTH)
    for layer in range(EYE_LAYERS):
        at = f"{seen}transformer.resblocks.{layer}."
        shapes |= _linear(f"{at}ln_1.", EYE) | _linear(f"{at}ln_2.", EYE)
        shapes |= _linear(f"{at}attn.in_proj.", 3 * EYE, EYE)
        shapes |= _linear(f"{at}attn.out_proj.", EYE, EYE)
        shapes |= _linear(f"{at}mlp.c_fc.", EYE_INNER, EYE)
        shapes |= _linear(f"{at}mlp.c_proj.", EYE, EYE_INNER)
    return shapes
