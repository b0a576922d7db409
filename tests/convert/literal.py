"""The originals' forward passes, written out from their weights: slow, one row, no cache.

What each computes was read in the authors' code: haotian-liu/LLaVA, Meituan-AutoML/MobileVLM,
OpenGVLab/InternVL, and the model files that come with Qwen-VL.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from .originals import (
    EYE,
    EYE_HEADS,
    EYE_LAYERS,
    HEADS,
    KV_HEADS,
    LAYERS,
    QWEN_WIDTH,
    State,
)

Project = Callable[[Tensor, int], Sequence[Tensor]]  # queries, keys, values [heads, t, d]


def llava(state: State, ids: Sequence[int], image_id: int, pixels: Tensor) -> Tensor:
    """LLaVA-1.5: the last layer but one of CLIP without its class token, two linear layers."""
    images = []
    for image in pixels:
        seen = _clip(state, image)
        hidden = F.gelu(_linear(state, "model.mm_projector.0.", seen))
        images.append(_linear(state, "model.mm_projector.2.", hidden))
    return _llama(state, "model.", "lm_head.weight", ids, image_id, images, 10000.0)


def mobilevlm(state: State, ids: Sequence[int], image_id: int, pixels: Tensor) -> Tensor:
    """MobileVLM V2: pooled to 12 by 12, and each place gets a weighted sum of its neighbors."""
    images, at = [], "model.mm_projector."
    for image in pixels:
        hidden = F.gelu(_linear(state, f"{at}mlp.mlp.0.", _clip(state, image)))
        hidden = _linear(state, f"{at}mlp.mlp.2.", hidden)
        side = math.isqrt(len(hidden))
        size = side // 12
        grid = hidden.view(12, size, 12, size, -1).mean((1, 3))  # [12, 12, channels]
        kernel, padded = state[f"{at}peg.peg.0.weight"], F.pad(grid, (0, 0, 1, 1, 1, 1))
        around = torch.zeros_like(grid)
        for row in range(3):
            for column in range(3):
                part = padded[row : row + 12, column : column + 12]
                around += part * kernel[:, 0, row, column]
        grid = grid + around + state[f"{at}peg.peg.0.bias"]
        images.append(grid.flatten(0, 1))
    return _llama(state, "model.", "lm_head.weight", ids, image_id, images, 10000.0)


def internvl(state: State, ids: Sequence[int], image_id: int, pixels: Tensor) -> Tensor:
    """InternVL-Chat 1.5: every 2 by 2 patches side by side, then a norm and two linear layers."""
    images = []
    for image in pixels:
        grid = _intern_vit(state, image).view(6, 6, EYE)
        rows = [
            torch.cat([grid[2 * r, 2 * c], grid[2 * r, 2 * c + 1], *grid[2 * r + 1, 2 * c :][:2]])
            for r in range(3)
            for c in range(3)
        ]
        hidden = _norm(state, "mlp1.0.", torch.stack(rows), 1e-5)
        hidden = F.gelu(_linear(state, "mlp1.1.", hidden))
        images.append(_linear(state, "mlp1.3.", hidden))
    if "language_model.output.weight" in state:
        return _internlm2(state, ids, image_id, images)
    at, head = "language_model.model.", "language_model.lm_head.weight"
    return _llama(state, at, head, ids, image_id, images, 1000000.0)


def qwen_vl(state: State, ids: Sequence[int], image_id: int, pixels: Tensor) -> Tensor:
    """Qwen-VL: one fused projection with bias, and a gated layer whose second half is the gate."""
    images = [_qwen_eye(state, image) for image in pixels]
    hidden = _embedded(state["transformer.wte.weight"], ids, image_id, images)
    for layer in range(LAYERS):
        at = f"transformer.h.{layer}."
        normed = _rms(hidden, state[f"{at}ln_1.weight"], 1e-6)
        mixed = _linear(state, f"{at}attn.c_attn.", normed)
        q, k, v = (_heads(part, HEADS) for part in mixed.split(QWEN_WIDTH, -1))
        read = _attend(_rotated(q, 10000.0), _rotated(k, 10000.0), v, causal=True)
        hidden = hidden + read @ state[f"{at}attn.c_proj.weight"].T
        normed = _rms(hidden, state[f"{at}ln_2.weight"], 1e-6)
        one, two = (normed @ state[f"{at}mlp.w{n}.weight"].T for n in (1, 2))
        hidden = hidden + (one * F.silu(two)) @ state[f"{at}mlp.c_proj.weight"].T
    return _rms(hidden, state["transformer.ln_f.weight"], 1e-6) @ state["lm_head.weight"].T


def _llama(
    state: State,
    prefix: str,
    head: str,
    ids: Sequence[int],
    image_id: int,
    images: Sequence[Tensor],
    theta: float,
) -> Tensor:
    hidden = _embedded(state[f"{prefix}embed_tokens.weight"], ids, image_id, images)
    for layer in range(LAYERS):
        at = f"{prefix}layers.{layer}."
        normed = _rms(hidden, state[f"{at}input_layernorm.weight"], 1e-5)
        q, k, v = (_heads(normed @ state[f"{at}self_attn.{n}_proj.weight"].T, HEADS) for n in "qkv")
        read = _attend(_rotated(q, theta), _rotated(k, theta), v, causal=True)
        hidden = hidden + read @ state[f"{at}self_attn.o_proj.weight"].T
        normed = _rms(hidden, state[f"{at}post_attention_layernorm.weight"], 1e-5)
        gate, up = (normed @ state[f"{at}mlp.{n}_proj.weight"].T for n in ("gate", "up"))
        hidden = hidden + (F.silu(gate) * up) @ state[f"{at}mlp.down_proj.weight"].T
    return _rms(hidden, state[f"{prefix}norm.weight"], 1e-5) @ state[head].T


def _internlm2(state: State, ids: Sequence[int], image_id: int, images: Sequence[Tensor]) -> Tensor:
    """Per head of keys the fused projection has its query heads, then the keys, then the values."""
    start, theta, group = "language_model.model.", 1000000.0, HEADS // KV_HEADS
    hidden = _embedded(state[f"{start}tok_embeddings.weight"], ids, image_id, images)
    for layer in range(LAYERS):
        at = f"{start}layers.{layer}."
        normed = _rms(hidden, state[f"{at}attention_norm.weight"], 1e-5)
        parts = (normed @ state[f"{at}attention.wqkv.weight"].T).chunk(KV_HEADS * (group + 2), -1)
        q, k, v = [], [], []
        for head in range(KV_HEADS):
            mine = parts[head * (group + 2) : (head + 1) * (group + 2)]
            q += mine[:group]
            k += [mine[group]] * group
            v += [mine[group + 1]] * group
        rotated = (_rotated(torch.stack(each), theta) for each in (q, k))
        read = _attend(*rotated, torch.stack(v), causal=True)
        hidden = hidden + read @ state[f"{at}attention.wo.weight"].T
        normed = _rms(hidden, state[f"{at}ffn_norm.weight"], 1e-5)
        one, three = (normed @ state[f"{at}feed_forward.w{n}.weight"].T for n in (1, 3))
        hidden = hidden + (F.silu(one) * three) @ state[f"{at}feed_forward.w2.weight"].T
    normed = _rms(hidden, state[f"{start}norm.weight"], 1e-5)
    return normed @ state["language_model.output.weight"].T


def _clip(state: State, image: Tensor) -> Tensor:
    at = "model.vision_tower.vision_tower.vision_model."
    patches = F.conv2d(
        image[None],
        kernel := state[f"{at}embeddings.patch_embedding.weight"],
        stride=kernel.shape[-1],
    )[0]
    hidden = torch.cat([state[f"{at}embeddings.class_embedding"][None], patches.flatten(1).T])
    hidden = hidden + state[f"{at}embeddings.position_embedding.weight"]
    hidden = _norm(state, f"{at}pre_layrnorm.", hidden, 1e-5)
    for layer in range(EYE_LAYERS - 1):
        one = f"{at}encoder.layers.{layer}."
        normed = _norm(state, f"{one}layer_norm1.", hidden, 1e-5)
        q, k, v = (
            _heads(_linear(state, f"{one}self_attn.{n}_proj.", normed), EYE_HEADS) for n in "qkv"
        )
        hidden = hidden + _linear(state, f"{one}self_attn.out_proj.", _attend(q, k, v))
        inner = _linear(state, f"{one}mlp.fc1.", _norm(state, f"{one}layer_norm2.", hidden, 1e-5))
        inner = inner * torch.sigmoid(1.702 * inner)
        hidden = hidden + _linear(state, f"{one}mlp.fc2.", inner)
    return hidden[1:]


def _intern_vit(state: State, image: Tensor) -> Tensor:
    at = "vision_model."
    kernel, bias = (state[f"{at}embeddings.patch_embedding.{n}"] for n in ("weight", "bias"))
    patches = F.conv2d(image[None], kernel, bias, stride=4)[0]
    hidden = torch.cat([state[f"{at}embeddings.class_embedding"][0], patches.flatten(1).T])
    hidden = hidden + state[f"{at}embeddings.position_embedding"][0]
    for layer in range(EYE_LAYERS):
        one = f"{at}encoder.layers.{layer}."
        normed = _rms(hidden, state[f"{one}norm1.weight"], 1e-6)
        q, k, v = (normed @ state[f"{one}attn.qkv.weight"].T).split(EYE, -1)
        q, k = (_rms(x, state[f"{one}attn.{n}_norm.weight"], 1e-6) for x, n in ((q, "q"), (k, "k")))
        read = _attend(*(_heads(part, EYE_HEADS) for part in (q, k, v)))
        hidden = hidden + _linear(state, f"{one}attn.proj.", read) * state[f"{one}ls1"]
        inner = _linear(state, f"{one}mlp.fc1.", _rms(hidden, state[f"{one}norm2.weight"], 1e-6))
        hidden = hidden + _linear(state, f"{one}mlp.fc2.", F.gelu(inner)) * state[f"{one}ls2"]
    return hidden[1:]


def _qwen_eye(state: State, image: Tensor) -> Tensor:
    at = "transformer.visual."
    patches = F.conv2d(image[None], state[f"{at}conv1.weight"], stride=4)[0].flatten(1).T
    hidden = patches + _resized(state[f"{at}positional_embedding"], len(patches))
    hidden = _norm(state, f"{at}ln_pre.", hidden, 1e-6)
    for layer in range(EYE_LAYERS):
        one = f"{at}transformer.resblocks.{layer}."
        normed = _norm(state, f"{one}ln_1.", hidden, 1e-6)
        mixed = _linear(state, f"{one}attn.in_proj.", normed)
        each = [part.chunk(3, -1) for part in mixed.chunk(EYE_HEADS, -1)]  # q, k, v of each head
        q, k, v = (torch.stack([head[i] for head in each]) for i in range(3))
        hidden = hidden + _linear(state, f"{one}attn.out_proj.", _attend(q, k, v))
        inner = _linear(state, f"{one}mlp.c_fc.", _norm(state, f"{one}ln_2.", hidden, 1e-6))
        hidden = hidden + _linear(state, f"{one}mlp.c_proj.", F.gelu(inner))
    pool = f"{at}attn_pool."
    value = _norm(state, f"{pool}ln_kv.", hidden @ state[f"{pool}kv_proj.weight"].T, 1e-6)
    places = state[f"{pool}pos_embed"]
    query = _norm(state, f"{pool}ln_q.", state[f"{pool}query"], 1e-6) + places
    key = value + _resized(places, len(value))
    weights = state[f"{pool}attn.in_proj_weight"].chunk(3)
    biases = state[f"{pool}attn.in_proj_bias"].chunk(3)
    q, k, v = (
        _heads(x @ w.T + b, QWEN_WIDTH // 128)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    tokens = _linear(state, f"{pool}attn.out_proj.", _attend(q, k, v))
    return _norm(state, f"{at}ln_post.", tokens, 1e-6) @ state[f"{at}proj"]


def _embedded(table: Tensor, ids: Sequence[int], image_id: int, images: Sequence[Tensor]) -> Tensor:
    """The prompt with the images' tokens in the places that were kept for them."""
    left = iter(torch.cat(list(images)))
    return torch.stack([next(left) if one == image_id else table[one] for one in ids])


def _resized(table: Tensor, patches: int) -> Tensor:
    old, new = math.isqrt(len(table)), math.isqrt(patches)
    if old == new:
        return table
    grid = table.reshape(1, old, old, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(new, new), mode="bicubic", align_corners=False)
    return grid.permute(0, 2, 3, 1).reshape(patches, -1)


def _heads(hidden: Tensor, heads: int) -> Tensor:
    return torch.stack(hidden.chunk(heads, -1))


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    out = []
    for query, key, value in zip(q, k, v, strict=True):
        scores = query @ key.T / math.sqrt(query.shape[-1])
        if causal:
            future = torch.ones_like(scores, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -math.inf)
        out.append(scores.softmax(-1) @ value)
    return torch.cat(out, -1)


def _rotated(x: Tensor, theta: float) -> Tensor:
    """Each pair (i, i + half) turned by its position times its frequency. [heads, t, d]"""
    half = x.shape[-1] // 2
    frequencies = theta ** (-torch.arange(half) / half)
    angles = torch.arange(x.shape[1])[:, None] * frequencies
    a, b = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def _norm(state: State, at: str, x: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], state[f"{at}weight"], state[f"{at}bias"], eps)


def _linear(state: State, at: str, x: Tensor) -> Tensor:
    return x @ state[f"{at}weight"].T + state[f"{at}bias"]
