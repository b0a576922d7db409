"""vLLM with a cache of FP8 codes where no kernel is for them, and what transformers then answers.

vLLM's kernels for CPUs read codes with AVX-512 alone, and FlashAttention reads them on GPUs. Here
both are given what the codes stand for; all else, vLLM's and Foveate's, is as with these kernels.
"""

import contextlib
from unittest import mock

import torch
from transformers.models.llama import modeling_llama

from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from tests.serving import stand_ins

TYPES = {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
Q, K, V = 0.7, 0.3, 0.11  # scales, as a checkpoint of codes would bring
HEADS = [None]  # by what the scales of each KV head are multiplied; None: one scale for all


def coded(values, scale, kind=torch.float8_e4m3fn):
    most = torch.finfo(kind).max
    return (values / scale).clamp(-most, most).to(kind)


def valued(codes, scale, kind=torch.float8_e4m3fn):
    return codes.view(kind).float() * scale


def rounded(values, scale, kind):
    return valued(coded(values, scale, kind), scale, kind)


@contextlib.contextmanager
def scaled():
    """Every layer has scales that are not 1."""
    from vllm.model_executor.layers.attention import attention

    plain = attention.set_default_quant_scales

    def scales(layer, register_buffer=False):
        plain(layer, register_buffer)
        for name, scale in (("q", Q), ("k", K), ("v", V)):
            if HEADS[0] is None:
                getattr(layer, f"_{name}_scale").fill_(scale)
            else:
                setattr(layer, f"_{name}_scale", scale * HEADS[0])
            setattr(layer, f"_{name}_scale_float", scale)

    with mock.patch.object(attention, "set_default_quant_scales", scales):
        yield


@contextlib.contextmanager
def on_cpu(stock=False):
    """CPU_ATTN over codes, which lie as numbers do with the instruction set "vec"."""
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends import cpu_attn

    schedule, attend = ops.cpu_attn_get_scheduler_metadata, ops.cpu_attention_with_kv_cache

    def scheduled(**told):
        return schedule(**told | {"kv_cache_dtype": "auto"})

    def write(key, value, keys, values, slots, isa, k_scale, v_scale, kv_cache_dtype):
        kind, (_, _, size, d) = TYPES[kv_cache_dtype], keys.shape
        pages, within = slots // size, slots % size
        at = keys.as_strided((*keys.shape[:2], d, size), (*keys.stride()[:2], size, 1))
        at[pages, :, :, within] = coded(key, k_scale, kind).view(torch.uint8)
        values[pages, :, within] = coded(value, v_scale, kind).view(torch.uint8)

    def attended(key_cache, value_cache, k_scale, v_scale, kv_cache_dtype, **told):
        kind = TYPES[kv_cache_dtype]
        numbers = {
            "key_cache": valued(key_cache, k_scale, kind),
            "value_cache": valued(value_cache, v_scale, kind),
        }
        attend(**told, **numbers)

    with (
        scaled(),
        mock.patch.object(cpu_attn, "_get_attn_isa", return_value="vec"),
        mock.patch.object(ops, "cpu_attn_get_scheduler_metadata", scheduled),
        mock.patch.object(ops, "cpu_attn_reshape_and_cache", write),
        mock.patch.object(ops, "cpu_attention_with_kv_cache", attended),
    ):
        yield


@contextlib.contextmanager
def on_gpu(stock=False):
    """FLASH_ATTN over codes; queries are coded as well."""
    from vllm.v1.attention.backends import flash_attn

    from foveate.vllm.vllm_api import flash_attention
    from foveate.vllm.worker.gpu import FoveateFlash

    def attend(q, k, v, q_descale, k_descale, v_descale, **told):
        pairs = ((q, q_descale), (k, k_descale), (v, v_descale))
        numbers = (valued(codes, along(scale[0], codes)) for codes, scale in pairs)
        return stand_ins.attend(*numbers, **told)

    def write(key, value, keys, values, slots, kind, k_scale, v_scale):
        pairs = ((key, k_scale), (value, v_scale))
        codes = (coded(t, along(s, t)).view(torch.uint8) for t, s in pairs)
        stand_ins.write(*codes, keys, values, slots, kind, k_scale, v_scale)

    kernels = {
        "flash_attn_varlen_func": attend,
        "reshape_and_cache_flash": write,
        "flash_attn_supports_kv_cache_dtype": lambda *args, **options: True,
        "flash_attn_supports_quant_query_input": lambda: True,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(scaled())
        backend = flash_attention().backend if stock else FoveateFlash
        stack.enter_context(stand_ins.attending_with(backend))
        for name, kernel in kernels.items():
            stack.enter_context(mock.patch.object(flash_attn, name, kernel))
        yield


@contextlib.contextmanager
def per_head(multiplied):
    """Inside, each KV head has its own scales."""
    HEADS[0] = torch.tensor(multiplied)
    try:
        yield
    finally:
        HEADS[0] = None


def along(scale, values, axis=-2):
    """A scale, or one for each KV head, so that it fits an axis of heads or of query heads."""
    scale = torch.as_tensor(scale).flatten()
    if scale.numel() == 1 or HEADS[0] is None:
        return scale[0]
    scale = scale.repeat_interleave(values.shape[axis] // len(scale))
    return scale.view(-1, *[1] * (-axis - 1))


def of_heads(scale):
    return scale if HEADS[0] is None else scale * HEADS[0]


@contextlib.contextmanager
def rounding(model, kind, queries=False):
    """Transformers' Llama, which attends to what codes stand for; so do pairs that are merged."""
    plain = modeling_llama.apply_rotary_pos_emb

    def rotated(q, k, cos, sin):
        q, k = plain(q, k, cos, sin)
        keys = rounded(k, along(of_heads(K), k, -3), kind)
        return rounded(q, along(of_heads(Q), q, -3), kind) if queries else q, keys

    def stored(_, __, told):
        for layer in foveate_layers(told[CACHE]):
            held = layer.pairs.tensors()
            for name, scale in (("k", K), ("v", V)):
                held[name].copy_(rounded(held[name], along(of_heads(scale), held[name], -3), kind))

    def valued_heads(out, kind):
        heads = out.unflatten(-1, (-1, model.config.head_dim))
        return rounded(heads, along(of_heads(V), heads), kind).flatten(-2)

    hooks = [model.register_forward_pre_hook(stored, with_kwargs=True)]
    hooks += [
        layer.self_attn.v_proj.register_forward_hook(lambda _, __, out: valued_heads(out, kind))
        for layer in model.model.layers
    ]
    try:
        with mock.patch.object(modeling_llama, "apply_rotary_pos_emb", rotated):
            yield
    finally:
        for hook in hooks:
            hook.remove()
