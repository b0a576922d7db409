"""A worker's records of its requests, for either of vLLM's model runners."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from foveate.compression.layer_memory import Pass, Phase
from foveate.compression.reading import PromptReading
from foveate.vllm.plans.books import RequestBooks
from foveate.vllm.plans.failures import Reason, RequestFailure
from foveate.vllm.plans.orders import Orders, computed_tokens
from foveate.vllm.plans.plans import Offer, Plan
from foveate.vllm.worker.rows import RequestPrompt, in_blocks, visual_mask
from foveate.vllm.worker.snapshots import Snapshots

logger = logging.getLogger("vllm.foveate.prompts")  # vLLM prints only loggers below its own name


class Prompts:
    """Requests of a worker, with the scheduler's orders for them.

    ``runner`` is vLLM's model runner. ``ordinals`` has the number of each compressed layer of this
    worker by name, out of ``depth`` in all pipeline stages. ``records`` is True if kept positions
    are recorded; on a GPU they would take memory that vLLM has reserved for its pool.
    """

    def __init__(
        self, offer: Offer, ordinals: Mapping[str, int], runner: Any, depth: int | None = None
    ):
        self.ordinals = ordinals
        self.depth = len(ordinals) if depth is None else depth
        self.model_indices = {ordinal: _model_index(name) for name, ordinal in ordinals.items()}
        self.records = torch.device(runner.device).type == "cpu"
        self.failed: dict[str, RequestFailure] = {}
        self.barred: set[str] = set()  # requests that this pass must not read or compress
        self.completed: list[Plan] = []  # plans of the prompts that this pass completes
        self.reading = False  # True if a policy observes tokens of this pass
        # seconds spent on compressing since the last take_seconds(), by the policy's number
        self.seconds: defaultdict[int | None, float] = defaultdict(float)
        self.books = RequestBooks()
        self.snapshots = Snapshots()
        # tokens that this pass's new requests found compressed, by the policy's number
        self.not_read: Counter[int | None] = Counter()
        self._offer, self._runner = offer, runner
        self._plans: dict[str, Plan | None] = {}
        self._features: dict[str, Any] = {}
        self._known: dict[str, RequestPrompt] = {}
        self._fails: set[str] = set()
        self._saves: Mapping[str, int] = {}
        self._serving = False

    @contextmanager
    def serving(self, output: Any) -> Iterator[None]:
        """Mark the pass of a ``SchedulerOutput``. Passes outside this context are warm-ups, even if
        the runner's batch still lists requests.
        """
        self._learn(output)
        self.barred = set()
        try:
            self._serving = True
            yield
            self._save()
        finally:
            self._serving = self.reading = False

    def take_seconds(self) -> Mapping[int | None, float]:
        """Return the seconds spent on compressing since the last call, by the policy's number."""
        taken, self.seconds = self.seconds, defaultdict(float)
        return taken

    def take_failed(self) -> Mapping[str, RequestFailure]:
        """Return the requests that failed since the last call."""
        taken, self.failed = self.failed, {}
        return taken

    def rows(self, common: Any) -> list[str | None]:
        """Return the request of each row of this pass; an empty list in a warm-up pass.

        ``common`` is the pass's ``CommonAttentionMetadata``, which names the requests under the
        second runner. Padding rows of a graph are None, or left out at the end.
        """
        if not self._serving:
            return []
        if (indices := getattr(common, "req_idx", None)) is None:
            return list(self._runner.input_batch.req_ids)
        names = self._runner.req_states.index_to_req_id
        return [names.get(int(index)) for index in indices]

    def plan(self, name: str) -> Plan | None:
        """Return the plan of a request; None if the scheduler sent none, or one for another policy
        than this worker's, since each process reads its own environment.
        """
        return self._plans.get(name)

    def prompt(self, name: str) -> RequestPrompt:
        """Return the prompt of a request whose plan has a policy, created at the first call."""
        if name not in self._known:
            plan, features = self._plans[name], self._features[name]
            assert plan is not None
            assert plan.chosen is not None
            vision = visual_mask(features, plan.length).to(self._runner.device)
            policy = in_blocks(self._offer.policy(plan.chosen, plan.amount), plan)
            reading = PromptReading(policy, self.depth)
            self._known[name] = RequestPrompt(name, plan, policy, vision, reading)
        return self._known[name]

    def observed_boundary(self, name: str, group: int, computed: int, new: int) -> int | None:
        """Return the next boundary of a request if its policy observes this pass, else None.

        The pass adds ``new`` tokens to ``computed``. Policies observe all passes that read the
        prompt, and passes of the answer whose queries or sums the score needs at the boundary. A
        boundary at which the request ends does not count.
        """
        plan = self.plan(name)
        boundaries = plan and plan.boundaries.get(group)
        until = boundaries and boundaries.after(computed)
        if plan is None or boundaries is None or until is None:
            return None
        budget = boundaries.budget_at(until)
        if budget >= until or (plan.end is not None and until >= plan.end):
            return None
        if until <= plan.length:
            return until
        policy = self.prompt(name).policy
        queries = max(1, policy.score.queries(budget))
        return until if policy.running or computed + new > until - queries else None

    def fail(self, name: str, reason: Reason, why: str) -> None:
        """Fail this request only."""
        if name not in self._fails:
            self._fails.add(name)
            self.failed[name] = RequestFailure(reason, why)
            logger.error("Request %s fails: %s", name, why)

    def bar(self, name: str, why: str) -> None:
        """Fail a request, and keep this pass from reading any of its blocks."""
        self.barred.add(name)
        self.fail(name, Reason.ORDER, f"{why}. It reads nothing; please report this.")

    def _learn(self, output: Any) -> None:
        """Update the records from a step's ``SchedulerOutput``. Requests that ended, or were
        preempted and start over, are dropped first.
        """
        orders = Orders.sent(output)
        for name in output.finished_req_ids:
            self._known.pop(name, None)
            self._plans.pop(name, None)
            self._features.pop(name, None)
            self._fails.discard(name)
        for name in output.preempted_req_ids or ():
            self._known.pop(name, None)
        for new in output.scheduled_new_reqs:
            self._features[new.req_id] = new.mm_features
            if new.req_id in orders.goes_on:
                continue
            self._known.pop(new.req_id, None)
            plan = orders.begin.get(new.req_id)
            self._plans[new.req_id] = plan if self._follows(plan) else None
        self.books.learn(output, orders)
        computed = computed_tokens(output)
        self.completed = list(self._completed(output, computed))
        for name, number in orders.starts.items():
            self._start(name, number)
        self.snapshots.drop(orders.drops)
        self._saves = orders.saves
        self.not_read = Counter()
        for name, plan in orders.begin.items():
            if name in orders.goes_on:
                continue
            # a snapshot, or a context that another request has compressed
            if plan and (name in orders.starts or 0 < plan.length <= computed[name]):
                self.not_read[plan.chosen] += computed[name]

    def _start(self, name: str, number: int) -> None:
        """Restore the snapshot with that number for a request that begins there."""
        if self.plan(name) is None:
            return  # without a plan, its rows are barred
        prompt = self.prompt(name)
        if not self.snapshots.restore(number, prompt, self._runner.device):
            why = f"this worker has no snapshot {number} of its beginning."
            self.fail(name, Reason.ORDER, why)
        if self.records:
            prompt.kept = {ordinal: list(each) for ordinal, each in prompt.positions.items()}

    def _save(self) -> None:
        """Make the snapshots that the scheduler ordered for this pass."""
        for name, number in self._saves.items():
            if name not in self._fails and name in self._known:
                self.snapshots.save(number, self._known[name])

    def _follows(self, plan: Plan | None) -> bool:
        if plan is None or plan.chosen is None:
            return plan is not None
        return str(self._offer.policy(plan.chosen, plan.amount)) == plan.spec

    def _completed(self, output: Any, computed: Mapping[str, int]) -> Iterator[Plan]:
        """Yield the plans of prompts whose last token this step reads, and note ``reading``."""
        for name, new in output.num_scheduled_tokens.items():
            if (plan := self.plan(name)) is None:
                continue
            phase = Pass.of(plan.length, computed[name], new).phase
            self.reading |= bool(plan.boundaries) and phase is not Phase.ANSWERING
            self.reading |= any(
                boundaries.every.answering
                and self.observed_boundary(name, group, computed[name], new) is not None
                for group, boundaries in plan.boundaries.items()
            )
            if Pass.of(plan.prompt, computed[name], new).phase is Phase.FINISHING:
                yield plan


def _model_index(name: str) -> int | None:
    """Return a layer's index in the model, read from vLLM's name for it
    ("model.layers.3.self_attn.attn"); None if the name has no number, or several.
    """
    numbers = [part for part in name.split(".") if part.isdecimal()]
    return int(numbers[0]) if len(numbers) == 1 else None
