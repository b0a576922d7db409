"""vLLM's GPU backends on a CPU: its CUDA kernels are written out in PyTorch, and everything else,
vLLM's and Foveate's, is what runs on a GPU.
"""

import contextlib
import itertools
from types import SimpleNamespace
from unittest import mock

import torch

from foveate.vllm.plans.orders import Orders
from foveate.vllm.plans.plans import Offer
from foveate.vllm.plans.rooms import Rooms


def attend(
    q,
    k,
    v,
    out,
    cu_seqlens_q,
    max_seqlen_q,
    seqused_k,
    max_seqlen_k,
    softmax_scale,
    causal,
    block_table,
    window_size,
    softcap,
    scheduler_metadata,
    alibi_slopes,
    dynamic_causal,
    s_aux,
    mask_mod,
    aux_tensors,
    **scales,
):
    """FlashAttention over pages, [p, s, h, d] each, row by row."""
    others = (scheduler_metadata, alibi_slopes, dynamic_causal, s_aux, mask_mod, aux_tensors)
    assert all(other is None for other in others)
    assert (causal, list(window_size), softcap) == (True, [-1, -1], 0)
    starts, ends = cu_seqlens_q.tolist(), seqused_k.tolist()
    assert max(ends) <= max_seqlen_k
    assert max(b - a for a, b in itertools.pairwise(starts)) <= max_seqlen_q
    for row, length in enumerate(ends):
        new = q[starts[row] : starts[row + 1]]
        keys, values = (
            t[block_table[row].long()]
            .flatten(0, 1)[:length]
            .repeat_interleave(q.shape[1] // t.shape[2], dim=1)
            for t in (k, v)
        )
        logits = torch.einsum("qhd,khd->hqk", new, keys) * softmax_scale
        seen = torch.arange(length)[None] <= torch.arange(length - len(new), length)[:, None]
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
        out[starts[row] : starts[row + 1]] = torch.einsum("hqk,khd->qhd", weights, values)
    return out


def write(key, value, key_cache, value_cache, slot_mapping, kv_cache_dtype, k_scale, v_scale):
    """The operator reshape_and_cache_flash."""
    size = key_cache.shape[1]
    for i, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            key_cache[slot // size, slot % size] = key[i]
            value_cache[slot // size, slot % size] = value[i]


@contextlib.contextmanager
def attending_with(backend):
    """Engines made here attend with this FLASH_ATTN, vLLM's own or Foveate's."""
    from vllm.v1.attention import selector
    from vllm.v1.attention.backends import flash_attn

    class Implementation(backend.get_impl_cls()):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.vllm_flash_attn_version = 2  # there is none without CUDA

    class OnCPU(backend):
        @staticmethod
        def get_impl_cls():
            return Implementation

    with contextlib.ExitStack() as stack:
        for name, kernel in {
            "flash_attn_varlen_func": attend,
            "reshape_and_cache_flash": write,
        }.items():
            stack.enter_context(mock.patch.object(flash_attn, name, kernel, create=True))
        chosen = mock.patch.object(selector, "_cached_get_attn_backend", return_value=OnCPU)
        stack.enter_context(chosen)
        yield


def ordering(settings, rooms, block):
    """What the scheduler orders of prompts, by their lengths, under an engine's own policy."""
    offer, kept = Offer(settings), Rooms(rooms, block)

    def order(prompt):
        plan = offer.plan(None, prompt)
        boundaries = {0: kept.boundaries(plan.key)}
        return plan._replace(boundaries=boundaries, end=prompt + 99).order

    return order


def announced(requests, order, features=(), blocks=64, block=32):
    """A step's ``SchedulerOutput``, by names: of prompts, tokens computed and new ones each. All
    have that many blocks, and ``order(prompt)`` says what they keep; of prompts that have been
    read the scheduler holds what that leaves, of others all. A ``block`` has that many tokens.
    """
    one, orders = SimpleNamespace, {name: order(prompt) for name, (prompt, *_) in requests.items()}
    read = {name for name, (prompt, computed, _) in requests.items() if computed >= prompt}
    held = {name: {0: orders[name].boundaries[0].freed if name in read else 0} for name in orders}
    told = one(
        finished_req_ids=set(),
        preempted_req_ids=None,
        scheduled_new_reqs=[
            one(
                req_id=name,
                prompt_len=prompt,
                num_computed_tokens=computed,
                block_ids=([1] * blocks,),
                mm_features=features,
            )
            for name, (prompt, computed, _) in requests.items()
        ],
        scheduled_cached_reqs=one(
            req_ids=[], num_computed_tokens=[], new_block_ids=[], resumed_req_ids=set()
        ),
        num_scheduled_tokens={name: new for name, (_, _, new) in requests.items()},
    )
    steps = {name: (computed, computed + new) for name, (_, computed, new) in requests.items()}
    moves = {name: order.boundaries[0].move(*steps[name], block) for name, order in orders.items()}
    moves = {name: {0: move} for name, move in moves.items() if move}
    Orders(orders, held, moves=moves).send(told)
    return told
