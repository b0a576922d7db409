"""Two passes of compressed prompts on a pretended GPU and on the CPU; prints what differs.

python -m tests.serving.gpu_pretended POLICY...
"""

import json
import sys
from types import SimpleNamespace

import torch

from foveate.vllm import vllm_api
from foveate.vllm.plans.plans import Offer
from foveate.vllm.plans.settings import settings_from
from foveate.vllm.plans.tiers import rooms_of
from foveate.vllm.scheduler.blocks import CompressedSpec
from foveate.vllm.worker import pages
from foveate.vllm.worker.attention import Compressing
from foveate.vllm.worker.metadata import Rewriting
from foveate.vllm.worker.prompts import Prompts
from tests.serving.pretended import GPU, pretended_gpu
from tests.serving.stand_ins import announced, ordering

BLOCK, COLUMNS, HEADS, GROUPS, D = 16, 24, 2, 2, 8
REQUESTS = (300, 130, 97)  # prompts
PASSES = (  # (computed, new) of each request: an answer, a prompt, a prompt in two
    ((300, 1), (0, 130), (0, 64)),
    ((301, 1), (130, 1), (64, 33)),
)


class Plain:
    """Stands for vLLM's builder and implementation: what they are told is what counts here."""

    def build(self, prefix, batch, fast=False):
        return SimpleNamespace(batch=batch)

    def forward(self, layer, query, key, value, cache, metadata, output):
        output.copy_(query + metadata.batch.max_seq_len)
        return output


class Builder(Rewriting, Plain):
    pass


class Implementation(Compressing, Plain):
    read, write = staticmethod(pages.read), staticmethod(pages.write)
    scale = D**-0.5


def batch_of(rows, table, device):
    new = torch.tensor([0] + [n for _, n in rows], dtype=torch.int32)
    ends = torch.tensor([c + n for c, n in rows], dtype=torch.int32)
    starts = new.cumsum(0, dtype=torch.int32)
    return vllm_api.CommonAttentionMetadata(
        query_start_loc=starts.to(device),
        query_start_loc_cpu=starts,
        seq_lens=ends.to(device),
        seq_lens_cpu_upper_bound=ends,
        num_reqs=len(rows),
        num_actual_tokens=int(starts[-1]),
        max_query_len=int(new.max()),
        max_seq_len=int(ends.max()),
        block_table_tensor=table.to(device),
        slot_mapping=torch.arange(int(starts[-1])).to(device),
    )


def passes(spec, device, gpu=None):
    """What is in the pool and the output after each pass, and fetches while metadata was built."""
    settings, draw = settings_from({"foveate": {"policy": spec}}), torch.Generator().manual_seed(0)
    names = [str(n) for n in REQUESTS]
    image = SimpleNamespace(
        modality="image", mm_position=SimpleNamespace(offset=5, length=20, is_embed=None)
    )
    runner = SimpleNamespace(device=device, input_batch=SimpleNamespace(req_ids=names))
    builder, implementation = Builder(), Implementation()
    plain = vllm_api.FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=HEADS, head_size=D, dtype=torch.float32
    )
    rooms, _ = rooms_of(settings.policies, 2, HEADS, longest=max(REQUESTS))
    builder.kv_cache_spec = CompressedSpec.of(plain, rooms)
    builder.vllm_config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=4))
    builder.prompts = Prompts(Offer(settings), {"first": 0, "second": 1}, runner)
    n = len(REQUESTS)
    table = torch.randperm(n * COLUMNS, generator=draw).view(n, COLUMNS).int()
    pools = [
        torch.randn(n * COLUMNS, HEADS, BLOCK, 2 * D, generator=draw).to(device) for _ in range(2)
    ]
    found, waits = [], 0
    for rows in PASSES:
        batch = batch_of(rows, table, device)
        before = gpu.copies if gpu else 0
        asked = zip(names, REQUESTS, rows, strict=True)
        rows = {name: (prompt, *row) for name, prompt, row in asked}
        told = announced(rows, ordering(settings, rooms, BLOCK), [image], block=BLOCK)
        with builder.prompts.serving(told):
            metadata = builder.build(0, batch)
        waits += (gpu.copies if gpu else 0) - before
        for name, pool in zip(("first", "second"), pools, strict=True):
            query = torch.randn(batch.num_actual_tokens, HEADS * GROUPS, D, generator=draw)
            query = query.to(device)
            pairs = query[:, :HEADS], query[:, :HEADS]
            output, layer = torch.zeros_like(query), SimpleNamespace(layer_name=name)
            implementation.forward(layer, query, *pairs, pool, metadata, output)
            found += [output.cpu(), pool.cpu().clone()]
        seen = metadata.batch
        found += [seen.block_table_tensor.cpu().clone(), seen.seq_lens.cpu().clone()]
    return found, waits


if __name__ == "__main__":
    told = {}
    whole, _ = passes("knorm:budget=100%", torch.device("cpu"))
    for spec in sys.argv[1:]:
        here, _ = passes(spec, torch.device("cpu"))
        with pretended_gpu() as gpu:
            there, waits = passes(spec, GPU, gpu)
        told[spec] = {
            "same": [torch.equal(a, b) for a, b in zip(here, there, strict=True)],
            "compressed": not torch.equal(here[-3], whole[-3]),
            "waits": waits,
        }
    print(json.dumps(told))
