"""Other workers: those with the other KV heads of a layer (tensor parallelism), and those with the
other layers (pipeline parallelism).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from foveate.vllm.plans.failures import Reason
from foveate.vllm.vllm_api import get_pp_group, get_tp_group
from foveate.vllm.worker.prompts import Prompts

_TAG = 7907
"""Tag of messages between pipeline stages; vLLM's own have the tag 0."""


def share_failures(prompts: Prompts, names: Sequence[str]) -> None:
    """Fail each of these requests on all tensor-parallel workers if it failed on one: vLLM reads
    the results of one worker only. Called in every step in which policies observe, which is the
    same for all workers, and only then can a request fail on one worker alone.
    """
    group = get_tp_group()
    if group.world_size == 1:
        return
    here = [name in prompts.failed for name in names]
    failed = torch.tensor(here, dtype=torch.uint8, device="cpu")
    torch.distributed.all_reduce(failed, torch.distributed.ReduceOp.MAX, group.cpu_group)
    _fail(prompts, names, failed, "another worker could not compress its prompt.")


def _fail(prompts: Prompts, names: Sequence[str], failed: torch.Tensor, why: str) -> None:
    for name, elsewhere in zip(names, failed.tolist(), strict=True):
        if elsewhere and name not in prompts.failed:
            prompts.fail(name, Reason.COMPRESSION, why)


class StageFailures:
    """Failed requests on their way to the last pipeline stage, whose results alone vLLM reads."""

    def __init__(self) -> None:
        self._sent: Any = None

    def pass_on(self, prompts: Prompts, names: Sequence[str]) -> None:
        """Fail each of these requests in the next stage if it failed in this one or an earlier one.
        Called as :func:`share_failures`. Nothing waits for the next stage, which runs later.
        """
        group = get_pp_group()
        if group.world_size == 1:
            return
        failed = torch.zeros(len(names), dtype=torch.uint8, device="cpu")
        if not group.is_first_rank:
            torch.distributed.recv(failed, group.prev_rank, group.cpu_group, tag=_TAG)
            why = "an earlier pipeline stage could not compress its prompt."
            _fail(prompts, names, failed, why)
        if not group.is_last_rank:
            here = prompts.take_failed()
            failed = torch.tensor([name in here for name in names], dtype=torch.uint8, device="cpu")
            self._send(failed, group)

    def _send(self, failed: torch.Tensor, group: Any) -> None:
        if self._sent is not None:
            self._sent.wait()
        self._sent = torch.distributed.isend(failed, group.next_rank, group.cpu_group, tag=_TAG)


def layers_of_all_stages(count: int) -> tuple[int, int]:
    """Return the number of compressed layers in earlier pipeline stages, and in all stages."""
    group = get_pp_group()
    counts = [count] * group.world_size
    if group.world_size > 1:
        torch.distributed.all_gather_object(counts, count, group.cpu_group)
    return sum(counts[: group.rank_in_group]), sum(counts)


def create_stage_inputs(runner: Any) -> None:
    """Create the buffers for what the stage before sends. vLLM 0.32 and 0.33 create them in a
    warm-up, which eager engines on CPUs skip; their first request fails on an assertion.
    """
    if get_pp_group().is_first_rank or runner.intermediate_tensors is not None:
        return
    runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
        batch_size=runner.max_num_tokens, dtype=runner.model_config.dtype, device=runner.device
    )
