"""vLLM's scheduler with a plan for each request, and compressed beginnings that requests share.

The gap blocks of a prompt that is compressed at its end are shared uncompressed, as long as the
pool has them, through vLLM's own prefix cache. Kept pairs are shared as well if a context was
declared, by requests with the same context, policy and budget; and at the boundaries of prompts
that are compressed while they are read (``beginnings``).

Steps of a request end at its boundaries (``boundaries``), so that a pass sees all of its tokens
under one gap. A request that is compressed more than once, and whose peak exceeds the pool, fails,
or its answer is cut short.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from math import lcm
from typing import Any

from foveate.errors import FoveateError, UnsupportedEngine
from foveate.vllm.metrics import Metrics
from foveate.vllm.plans.boundaries import Move
from foveate.vllm.plans.failures import Reason, RequestFailure
from foveate.vllm.plans.orders import Orders, computed_tokens
from foveate.vllm.plans.plans import Offer, Plan
from foveate.vllm.plans.settings import settings_from
from foveate.vllm.scheduler.beginnings import Beginning, Beginnings
from foveate.vllm.scheduler.blocks import CompressedManager, OtherGroup
from foveate.vllm.scheduler.connectors import ConnectorView
from foveate.vllm.scheduler.kept_report import KeptReport
from foveate.vllm.vllm_api import AsyncScheduler, FinishReason, Scheduler, init_logger

logger = init_logger("vllm.foveate.scheduler")


class Planning:
    """Mixin in front of one of vLLM's schedulers: plans requests and sends orders to workers."""

    requests: dict[str, Any]  # vLLM's attributes, up to the blank line
    kv_cache_manager: Any
    kv_cache_config: Any
    connector: Any
    need_mamba_block_aligned_split: bool
    num_lookahead_tokens: int
    num_spec_tokens: int
    encoder_cache_mismatch_reqs: set[str]

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        config = options["vllm_config"] if "vllm_config" in options else args[0]
        settings = settings_from(config.additional_config)
        self.offer, self._metrics = Offer(settings), Metrics(config, settings)
        self._failures: dict[str, tuple[Plan, RequestFailure]] = {}
        self.plans: dict[str, Plan] = {}
        managers = self.kv_cache_manager.coordinator.single_type_managers
        self._compressed = [
            manager for manager in managers if isinstance(manager, CompressedManager)
        ]
        if not self._compressed:
            raise UnsupportedEngine(
                "vLLM has merged the compressed layers of this model with others, so nothing would "
                "be compressed. Please report this."
            )
        self._others = [
            OtherGroup.of(manager, config)
            for manager in managers
            if not isinstance(manager, CompressedManager)
        ]
        self._draft_slots = self.num_lookahead_tokens + self.num_spec_tokens
        # layers with windows or states cannot begin after a context that they have not read, and
        # neither can a draft model
        self._shares_contexts = not self._others and self.kv_cache_manager.enable_caching
        self._freed: set[str] = set()
        self._going_on: set[str] = set()  # requests whose prompt goes on, until workers know
        for manager in self._compressed:
            manager.plans, manager.freed = self.plans, self._freed
            manager.ahead = config.max_concurrent_batches
        pool = self.kv_cache_manager.block_pool
        self._pool_blocks = pool.num_gpu_blocks - 1  # without vLLM's null block
        self._beginnings = Beginnings(self._compressed, pool, self._pool_blocks)
        numbers = {manager.kv_cache_group_id for manager in self._compressed}
        workers = config.parallel_config.world_size
        self._kept_report = KeptReport.of(self.kv_cache_config, numbers, workers)
        self._starts: dict[str, Beginning] = {}
        self._recompresses = self.offer.recompresses
        # vLLM calls _mamba_block_aligned_split only if this is set: for layers with states
        self._aligns_states = self.need_mamba_block_aligned_split
        self.need_mamba_block_aligned_split = True
        self._stock_prefix = self.kv_cache_manager.get_computed_blocks
        self.kv_cache_manager.get_computed_blocks = self._shared_prefix
        self._views = self._connector_views()
        self.kv_cache_manager.get_computed_blocks_for_connector = self._shared_prefix_of_connector
        self._readable: int | None = None  # of the request whose prefix is looked up
        coordinator = self.kv_cache_manager.coordinator
        self._stock_hit = coordinator.find_longest_cache_hit
        coordinator.find_longest_cache_hit = self._readable_hit

    def _connector_views(self) -> list[ConnectorView]:
        """Return the views of vLLM's KV connectors; the first may store compressed contexts."""
        if self.connector is None:
            return []
        several = getattr(self.connector, "_connectors", None)  # of MultiConnector
        carries = several is None and self._shares_contexts
        options = self.plans, self._compressed, self._beginnings
        each = [self.connector] if several is None else several
        return [ConnectorView(connector, *options, carries=carries) for connector in each]

    def add_request(self, request: Any) -> None:
        """Add a request. One that cannot be served fails once it is scheduled: it is added to the
        requests that vLLM ends with an error after a step.
        """
        if request.request_id in self.requests:
            reason, why = Reason.REQUEST, self._refuse_change(request)
        else:
            self.plans[request.request_id], why = self._make_plan(request)
            reason = Reason.REQUEST if why else Reason.POOL
            why = why or self._limit_answer(request)
            self._set_end(request)
        super().add_request(request)  # type: ignore[misc]
        if why and request.request_id in self.requests:
            logger.error("Request %s fails: %s", request.request_id, why)
            self._fail(request.request_id, RequestFailure(reason, why))

    def _refuse_change(self, request: Any) -> str:
        """Return why a prompt cannot go on with a request's Foveate arguments, else "". Its plan
        never changes, because its blocks follow the plan and may be shared.
        """
        plan, params = self.plans[request.request_id], request.sampling_params
        extra = dict((params and params.extra_args) or {}) if request.resumable else {}
        extra.pop("foveate_context", None)
        try:
            update = self.offer.plan(extra, request.num_prompt_tokens) if extra else plan
        except FoveateError as error:
            return str(error)
        if (update.chosen, update.policy) != (plan.chosen, plan.policy):
            return (
                f"its prompt goes on after an answer under {update.policy or 'full'}, and began "
                f"under {plan.policy or 'full'}. Give the same policy and budget, or none."
            )
        return ""

    def _update_request_as_session(self, session: Any, update: Any) -> None:
        """Continue a request with the next part of its prompt, as vLLM does; it reads that part
        behind the pairs that it has kept.
        """
        super()._update_request_as_session(session, update)  # type: ignore[misc]
        name, plan = session.request_id, self.plans[session.request_id]
        self._going_on.add(name)
        why, reason = self._limit_answer(session), Reason.POOL
        if update.mm_features and plan.recompresses:
            reason = Reason.REQUEST
            why = (
                "its prompt goes on with images, and its policy compresses what follows the first "
                "part of a prompt as text. Choose a policy with when=after_prefill."
            )
        if why:
            self._fail(name, RequestFailure(reason, why))

    def _fail(self, name: str, failure: RequestFailure) -> None:
        """Mark a request, so that vLLM ends it with an error after a step."""
        self.encoder_cache_mismatch_reqs.add(name)
        self._failures[name] = self.plans[name], failure

    def schedule(self, *args: Any, **options: Any) -> Any:
        """Schedule a step, and attach its orders for the workers."""
        output = super().schedule(*args, **options)  # type: ignore[misc]
        # under vLLM's second model runner, new requests include resumed ones
        begin = [new.req_id for new in output.scheduled_new_reqs]
        begin += output.scheduled_cached_reqs.resumed_req_ids
        self._share_loaded(begin)
        moves = self._moves(output)
        starts = {name: self._starts.pop(name) for name in begin if name in self._starts}
        if copies := self._beginnings.take_copies(starts):
            output.kv_cache_block_copies = [*(output.kv_cache_block_copies or ()), *copies]
        Orders(
            {name: self._order(name) for name in begin},
            {
                name: {
                    manager.kv_cache_group_id: manager.first_block(name)
                    for manager in self._compressed
                }
                for name in self._freed.union(begin)
            },
            {name: beginning.number for name, beginning in starts.items()},
            self._saves(moves),
            self._beginnings.take_dropped(),
            moves,
            self._going_on.intersection(begin),
        ).send(output)
        self._freed.clear()
        self._going_on.difference_update(begin)
        return output

    def _share_loaded(self, names: Iterable[str]) -> None:
        """Let other requests start behind the contexts that a connector has loaded for these."""
        for name in names:
            if any(view.take_loaded(name) for view in self._views):
                self._beginnings.share_context(self.requests[name], self.plans[name])

    def _saves(self, moves: Mapping[str, Mapping[int, Move]]) -> dict[str, int]:
        """Return the numbers of the snapshots that workers make after a step, by request."""
        if not self._shares_contexts:
            return {}
        numbers = {
            name: self._beginnings.save(self.requests[name], self.plans[name], move.end)
            for name, by_group in moves.items()
            for move in list(by_group.values())[:1]
        }
        return {name: number for name, number in numbers.items() if number is not None}

    def _moves(self, output: Any) -> dict[str, dict[int, Move]]:
        """Return the moves of a step that was just scheduled, by request and KV cache group."""
        moves: dict[str, dict[int, Move]] = {}
        for name, computed in computed_tokens(output).items():
            plan, end = self.plans[name], computed + output.num_scheduled_tokens[name]
            for manager in self._compressed:
                group = manager.kv_cache_group_id
                if (move := plan.move(group, computed, end, manager.block_size)) is not None:
                    moves.setdefault(name, {})[group] = move
        return moves

    def _order(self, name: str) -> Plan:
        return self.plans[name].order

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Handle a step's results: fail requests that workers could not compress, and share the
        compressed contexts and beginnings.
        """
        failed = getattr(model_runner_output, "foveate_failed", {})
        for name, failure in failed.items():
            if name in self.requests:
                self._fail(name, failure)
        for name, number in Orders.sent(scheduler_output).saves.items():
            gone = name not in self.requests  # for example, failed in the step before
            self._beginnings.settle(number, failed=gone or name in failed)
        for name, new in scheduler_output.num_scheduled_tokens.items():
            if name not in failed:
                self._remember(name, new)
        by_client = super().update_from_output(  # type: ignore[misc]
            scheduler_output, model_runner_output
        )
        self._explain(output for client in by_client.values() for output in client.outputs)
        return by_client

    def _explain(self, outputs: Iterable[Any]) -> None:
        """Count failed requests, and put the reason into ``stop_reason`` of vLLM's
        ``EngineCoreOutput``: it reaches the server, and errors leave it unused.
        """
        failures, self._failures = self._failures, {}
        for output in outputs:
            if output.request_id in failures and output.finish_reason == FinishReason.ERROR:
                plan, failure = failures[output.request_id]
                self._metrics.fail(plan.chosen, failure.reason)
                output.stop_reason = failure.sentence

    def _make_plan(self, request: Any) -> tuple[Plan, str]:
        """Return the plan of a request, and the reason if it cannot be served, else ""."""
        length, params = request.num_prompt_tokens, request.sampling_params
        block = lcm(
            *(manager.block_size for manager in self._compressed)
        )  # contexts end with whole blocks of all groups
        try:
            plan = self.offer.plan(params and params.extra_args, length, block)
        except FoveateError as error:
            return Plan(length, length), str(error)
        if plan.key is None:
            return plan, ""
        boundaries = {
            manager.kv_cache_group_id: manager.rooms.boundaries(plan.key)
            for manager in self._compressed
        }
        reading = any(each.every.reading for each in boundaries.values())
        ends = request.max_tokens == 1 and not request.resumable
        if ends and not plan.context and not reading:
            return plan, ""  # it ends with its prompt, so kept pairs would never be read
        return plan._replace(boundaries=boundaries), ""

    def _set_end(self, request: Any) -> None:
        """Set the limit of computed tokens in a request's plan."""
        plan = self.plans[request.request_id]
        # other requests read the pairs that a context keeps at its end
        if not plan.context and not request.resumable:
            end = request.num_prompt_tokens + request.max_tokens - 1
            self.plans[request.request_id] = plan._replace(end=end)

    def _limit_answer(self, request: Any) -> str:
        """Lower a request's ``max_tokens`` to fit the pool. Return the reason if the pool
        cannot even hold the prompt, else "".
        """
        if not self._recompresses:
            return ""  # vLLM has checked at start that the longest request fits
        plan, prompt = self.plans[request.request_id], request.num_prompt_tokens

        def blocks(tokens: int) -> int:
            compressed = (
                -(-(manager.peak(plan, tokens) + self._draft_slots) // manager.block_size)
                for manager in self._compressed
            )
            return int(sum(compressed)) + sum(other.blocks(tokens) for other in self._others)

        if (least := blocks(prompt + 1)) > self._pool_blocks:
            return (
                f"its prompt of {prompt} tokens needs {least} blocks at once, and the pool has "
                f"{self._pool_blocks}."
            )
        ends = range(prompt + 1, prompt + request.max_tokens + 1)
        fit = bisect_right(ends, self._pool_blocks, key=blocks)
        if fit < request.max_tokens:
            logger.warning(
                "The answer to request %s is limited to %d of %d tokens: the pool has %d blocks.",
                *(request.request_id, fit, request.max_tokens, self._pool_blocks),
            )
            request.max_tokens = fit
        return ""

    def _mamba_block_aligned_split(
        self, request: Any, num_new_tokens: int, found: int = 0, received: int = 0
    ) -> int:
        """Return the number of new tokens that a step takes: up to the request's next boundary.

        vLLM calls this for layers with states. ``found`` and ``received`` are tokens from the
        prefix cache and from a KV connector.
        """
        if self._aligns_states:
            plain = super()._mamba_block_aligned_split  # type: ignore[misc]
            num_new_tokens = plain(request, num_new_tokens, found, received)
        start = request.num_computed_tokens + found + received
        plan = self.plans.get(request.request_id)
        if plan is None or (stop := plan.stop(start)) is None:
            return num_new_tokens
        end = min(start + num_new_tokens, stop)
        return int(plan.settle(start, request.num_tokens, end) - start)

    def _shared_prefix(self, request: Any, *limits: int | None) -> Any:
        """Return the blocks that a request finds in the pool: a compressed context, or pairs that
        another request kept of the same beginning, or else uncompressed blocks of its prompt.

        NOTE: at least the last token must be computed, because its logits are needed. vLLM 0.33 may
        pass a lower limit.
        """
        plan = self.plans[request.request_id]
        enabled = self.kv_cache_manager.prefix_cache_lookup_enabled(request)
        limit = min(limit for limit in (request.num_tokens - 1, *limits) if limit is not None)
        self._starts.pop(request.request_id, None)
        shared = enabled and self._shares_contexts
        if shared and (beginning := self._beginnings.longest(request, plan, limit)):
            blocks = [manager.null_gap(plan, beginning.tokens) for manager in self._compressed]
            if plan.context:
                blocks = [[*gap, *kept] for gap, kept in zip(blocks, beginning.blocks, strict=True)]
            else:
                self._starts[request.request_id] = beginning
            own = self.kv_cache_manager.create_kv_cache_blocks(tuple(blocks))
            return own, beginning.tokens, 0
        if shared and 0 < plan.length <= limit and self._finds_context(request, plan):
            gap = tuple(manager.null_gap(plan, plan.length) for manager in self._compressed)
            own = self.kv_cache_manager.create_kv_cache_blocks(gap)
            return own, len(gap[0]) * self._compressed[0].block_size, 0
        groups = (manager.kv_cache_group_id for manager in self._compressed)
        self._readable = None if plan.key is None else min(map(plan.readable, groups))
        return self._stock_prefix(request, *limits)

    def _finds_context(self, request: Any, plan: Plan) -> bool:
        return any(view.finds_context(request, plan) for view in self._views)

    def _shared_prefix_of_connector(self, request: Any, *limits: int | None) -> Any:
        """Return the same for connectors that accept hits of different length by KV cache group;
        they get the hit that all groups have.
        """
        return (*self._shared_prefix(request, *limits), False)

    def _readable_hit(self, hashes: Any, limit: int) -> Any:
        """Return vLLM's longest prefix hit, cut to the tokens that the request may share."""
        readable = limit if self._readable is None else min(limit, self._readable)
        return self._stock_hit(hashes, readable)

    def _remember(self, name: str, new: int) -> None:
        """Share a context that the ``new`` tokens of a step have completed. Called before vLLM's
        update, as the request may end with that step.
        """
        plan, request = self.plans.get(name), self.requests.get(name)
        if plan is None or request is None or not plan.context or not self._shares_contexts:
            return
        done = request.num_computed_tokens - request.num_in_flight_tokens  # tokens before that step
        if plan.key is not None and done < plan.length <= done + new:
            self._beginnings.share_context(request, plan)
            for view in self._views:
                view.store_context(request, plan, self._beginnings.kept(request, plan, plan.length))

    def _free_request(self, request: Any, *args: Any, **options: Any) -> Any:
        freed = super()._free_request(request, *args, **options)  # type: ignore[misc]
        plan = self.plans.pop(request.request_id, None)
        self._starts.pop(request.request_id, None)
        self._going_on.discard(request.request_id)
        return self._kept_report.add(freed, plan)


class FoveateScheduler(Planning, Scheduler):
    """vLLM's synchronous scheduler, with plans."""


class FoveateAsyncScheduler(Planning, AsyncScheduler):
    """vLLM's asynchronous scheduler, with plans: it schedules steps while others run."""


def scheduler_of(vllm_config: Any, *args: Any, **options: Any) -> Planning:
    """Create the scheduler that ``--scheduler-cls foveate.vllm.Scheduler`` names: asynchronous if
    vLLM's configuration says so.
    """
    asynchronous = vllm_config.scheduler_config.async_scheduling
    kind = FoveateAsyncScheduler if asynchronous else FoveateScheduler
    return kind(vllm_config=vllm_config, *args, **options)  # noqa: B026
