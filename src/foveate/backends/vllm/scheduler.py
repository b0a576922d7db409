"""vLLM's scheduler, which knows what each request asks for, and what of a prompt can be shared.

Of a prompt that is compressed at its end, the blocks of the gap are shared, uncompressed, as long
as the pool has them: they are vLLM's own prefix cache. Of a context that is compressed for itself,
also what is kept of it is, by requests that declare the same context, policy and budget.
"""

from __future__ import annotations

from typing import Any

from foveate.backends.vllm.blocks import CompressedManager, asking
from foveate.backends.vllm.plans import Offer, Plan
from foveate.backends.vllm.settings import settings_from
from foveate.backends.vllm.vllm_api import AsyncScheduler, Scheduler, init_logger
from foveate.errors import FoveateError

logger = init_logger("vllm.foveate.scheduler")


class Planning:
    """Before one of vLLM's schedulers."""

    requests: dict[str, Any]  # these are vLLM's
    kv_cache_manager: Any
    encoder_cache_mismatch_reqs: set[str]

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        config = options["vllm_config"] if "vllm_config" in options else args[0]
        self.offer = Offer(settings_from(config.additional_config))
        self.plans: dict[str, Plan] = {}
        managers = self.kv_cache_manager.coordinator.single_type_managers
        self._compressed = [one for one in managers if isinstance(one, CompressedManager)]
        # layers with windows or states cannot begin after a context that they have not read
        alone = len(self._compressed) == len(managers)
        self._shares_contexts = alone and self.kv_cache_manager.enable_caching
        for manager in self._compressed:
            manager.plans = self.plans
        self._stock_prefix = self.kv_cache_manager.get_computed_blocks
        self.kv_cache_manager.get_computed_blocks = self._shared_prefix

    def add_request(self, request: Any) -> None:
        """A new request; one that cannot be served as it asks fails, once it is scheduled.

        It is put among those that vLLM ends with an error after a step.
        """
        known = request.request_id in self.requests
        super().add_request(request)  # type: ignore[misc]
        plan, why = self._planned(request, known)
        self.plans[request.request_id] = plan
        if why:
            logger.error("Request %s fails: %s", request.request_id, why)
            self.encoder_cache_mismatch_reqs.add(request.request_id)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """After a step: prompts that could not be compressed fail, and contexts that have been are
        there for others.
        """
        failed = getattr(model_runner_output, "foveate_failed", ())
        self.encoder_cache_mismatch_reqs.update(name for name in failed if name in self.requests)
        for name, new in scheduler_output.num_scheduled_tokens.items():
            if name not in failed:
                self._remember(name, new)
        return super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output
        )

    def _planned(self, request: Any, known: bool) -> tuple[Plan, str]:
        """The plan, and why it is none."""
        length = request.num_prompt_tokens
        params = request.sampling_params
        if known:
            return Plan(length), "its prompt goes on after an answer, and was compressed before."
        try:
            block = self._compressed[0].block_size if self._compressed else 1
            return self.offer.plan(params and params.extra_args, length, block), ""
        except FoveateError as error:
            return Plan(length), str(error)

    def _shared_prefix(self, request: Any, *most: int | None) -> Any:
        """What a request finds in the pool: a compressed context, or else blocks of its prompt.

        vLLM 0.33 may say how many tokens at ``most``; else it is all but the last, whose logits are
        wanted.
        """
        plan = self.plans[request.request_id]
        enabled = self.kv_cache_manager.prefix_cache_lookup_enabled(request)
        limits = [request.num_tokens - 1, *(limit for limit in most if limit is not None)]
        fits = 0 < plan.length <= min(limits)
        if enabled and plan.context and self._shares_contexts and fits:
            found = [one.compressed_context(request.block_hashes, plan) for one in self._compressed]
            if all(blocks is not None for blocks in found):
                return self.kv_cache_manager.create_kv_cache_blocks(tuple(found)), plan.length, 0
        with asking(plan):
            return self._stock_prefix(request, *most)

    def _remember(self, name: str, new: int) -> None:
        """Lets others find a context that the ``new`` tokens of a step have completed; before its
        request may end with that step.
        """
        plan, request = self.plans.get(name), self.requests.get(name)
        if plan is None or request is None or not plan.context or not self._shares_contexts:
            return
        done = request.num_computed_tokens - request.num_in_flight_tokens  # before that step
        if plan.key is not None and done < plan.length <= done + new:
            for manager in self._compressed:
                manager.remember_context(name, request.block_hashes, plan)

    def _free_request(self, request: Any, *args: Any, **options: Any) -> Any:
        freed = super()._free_request(request, *args, **options)  # type: ignore[misc]
        self.plans.pop(request.request_id, None)
        return freed


class FoveateScheduler(Planning, Scheduler):
    """vLLM's, for steps that wait for each other."""


class FoveateAsyncScheduler(Planning, AsyncScheduler):
    """vLLM's, for steps that are scheduled while others run."""


def scheduler_of(vllm_config: Any, *args: Any, **options: Any) -> Planning:
    """What vLLM makes its scheduler with, where ``--scheduler-cls`` names it."""
    asynchronous = vllm_config.scheduler_config.async_scheduling
    kind = FoveateAsyncScheduler if asynchronous else FoveateScheduler
    return kind(vllm_config=vllm_config, *args, **options)  # noqa: B026
