"""What a worker knows of the requests that it serves, whichever of vLLM's model runners it has."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.backends.vllm.gap import Phase
from foveate.backends.vllm.plans import Offer, Plan
from foveate.core.policy import Policy
from foveate.core.reading import PromptReading
from foveate.core.tensors import image_index, spot_index
from foveate.errors import FoveateError

VISUAL = ("image", "video")
logger = logging.getLogger("vllm.foveate.prompts")  # vLLM prints what is below its own name


@dataclass
class Prompt:
    """What is compressed of the prompt of request ``name``. ``vision`` is True at visual tokens;
    ``failed`` once it could not be compressed.
    """

    name: str
    plan: Plan
    policy: Policy
    vision: Bool[Tensor, "n"]
    reading: PromptReading
    kept: dict[int, list[Int[Tensor, "k"]]] = field(default_factory=dict)  # positions by layer
    failed: bool = False

    def __post_init__(self) -> None:
        self.image: Int[Tensor, "1 n"] = image_index(self.vision[None])
        self.spot: Int[Tensor, "1 n"] = spot_index(self.vision[None])

    @property
    def length(self) -> int:
        """Tokens that are compressed."""
        return self.plan.length


class Row(NamedTuple):
    """A request in a pass that adds ``new`` tokens to ``computed``; its queries start at ``start``
    of the pass's. ``table`` is its whole row of a group's block table, ``gap`` the blocks that its
    prompt leaves there, and ``kept`` the tokens that stay, per KV head. ``budget`` is what scores
    are told of.
    """

    prompt: Prompt
    gap: int
    kept: int
    budget: int
    start: int
    computed: int
    new: int
    table: Int[Tensor, "c"]

    @property
    def end(self) -> int:
        """How much of the prompt has been read after this pass."""
        return min(self.prompt.length, self.computed + self.new)

    @property
    def beyond(self) -> int:
        """Tokens of this pass that stand after what is compressed: a question after its context, or
        a preempted answer, read again.
        """
        return max(0, self.computed + self.new - self.prompt.length)


class Asked(NamedTuple):
    """A request as the scheduler announced it."""

    plan: Plan
    prompt: int
    features: Sequence[Any]


class Prompts:
    """The requests of a worker.

    ``runner`` is vLLM's model runner, ``ordinals`` says which of the compressed layers a name is.
    ``records`` says whether kept positions are remembered; on a GPU they would take memory that
    vLLM has given to its pool.
    """

    def __init__(self, offer: Offer, ordinals: Mapping[str, int], runner: Any, block: int):
        self.ordinals = ordinals
        self.model_indices = {ordinal: _model_index(name) for name, ordinal in ordinals.items()}
        self.records = torch.device(runner.device).type == "cpu"
        self.failed: set[str] = set()
        self.completed: list[tuple[Plan, int]] = []  # prompts of this pass, with their lengths
        self.reading = False  # whether this pass reads what is to be compressed
        self.seconds = 0.0  # spent on compressing, since they were taken last
        self._offer, self._runner, self._block = offer, runner, block
        self._asked: dict[str, Asked] = {}
        self._known: dict[str, Prompt] = {}
        self._serving = False

    @contextmanager
    def serving(self, output: Any) -> Iterator[None]:
        """Around the pass of a ``SchedulerOutput``; what runs outside is a warm-up, whatever the
        batch holds.
        """
        self._learn(output)
        try:
            self._serving = True
            yield
        finally:
            self._serving = self.reading = False

    def take_seconds(self) -> float:
        """The seconds that were spent on compressing since this was asked last."""
        taken, self.seconds = self.seconds, 0.0
        return taken

    def take_failed(self) -> frozenset[str]:
        """The requests whose prompts could not be compressed, since this was asked last."""
        taken, self.failed = frozenset(self.failed), set()
        return taken

    def rows(self, common: Any) -> list[str]:
        """The requests of this pass, in the order of its ``CommonAttentionMetadata``, which says
        which they are under the second runner; in a warm-up pass none.
        """
        if not self._serving:
            return []
        if (indices := getattr(common, "req_idx", None)) is None:
            return list(self._runner.input_batch.req_ids)
        names = self._runner.req_states.index_to_req_id
        return [names[int(index)] for index in indices if int(index) in names]

    def plan(self, name: str) -> Plan:
        """What is to become of that request's prompt."""
        return self._asked[name].plan

    def prompt(self, name: str) -> Prompt:
        """That request's prompt; it has a policy."""
        if name not in self._known:
            plan, _, features = self._asked[name]
            assert plan.policy is not None  # else there is nothing to ask
            vision = visual(features, plan.length).to(self._runner.device)
            reading = PromptReading(plan.policy, len(self.ordinals))
            self._known[name] = Prompt(name, plan, plan.policy, vision, reading)
        return self._known[name]

    def fail(self, row: Row, error: Exception) -> None:
        """Lets that row's request fail, and no other."""
        if row.prompt.failed:
            return
        row.prompt.failed = True
        self.failed.add(row.prompt.name)
        logger.error(
            "Request %s fails, as its prompt cannot be compressed: %r", row.prompt.name, error
        )

    def _learn(self, output: Any) -> None:
        """What a step's ``SchedulerOutput`` says of requests; those that ended, or were preempted
        and begin anew, are forgotten first.
        """
        for name in output.finished_req_ids:
            self._known.pop(name, None)
            self._asked.pop(name, None)
        for name in output.preempted_req_ids or ():
            self._known.pop(name, None)
        for new in output.scheduled_new_reqs:
            self._known.pop(new.req_id, None)
            self._asked[new.req_id] = self._request(new)
        self.completed = list(self._completed(output))

    def _request(self, new: Any) -> Asked:
        length, params = new.prompt_len, new.sampling_params
        before = self._asked.get(new.req_id)
        plan = Plan(length)  # as it is of requests that the scheduler lets fail
        if before is None or before.prompt == length:  # not longer than it was
            with suppress(FoveateError):
                plan = self._offer.plan(params and params.extra_args, length, self._block)
        return Asked(plan, length, new.mm_features)

    def _completed(self, output: Any) -> Iterator[tuple[Plan, int]]:
        """The prompts whose last token this step reads."""
        old = output.scheduled_cached_reqs
        computed = dict(zip(old.req_ids, old.num_computed_tokens, strict=True))
        computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        for name, new in output.num_scheduled_tokens.items():
            plan, prompt, _ = self._asked[name]
            if plan.key and Phase.of(plan.length, computed[name], new) is not Phase.ANSWERING:
                self.reading = True
            if Phase.of(prompt, computed[name], new) is Phase.FINISHING:
                yield plan, prompt


def visual(features: Sequence[Any] | None, length: int) -> Bool[Tensor, "n"]:
    """True at the tokens that stand for images and videos, by vLLM's ``mm_features``."""
    marked = torch.zeros(length, dtype=torch.bool, device="cpu")
    for feature in features or ():
        if feature.modality in VISUAL:
            where = feature.mm_position
            part = marked[where.offset : where.offset + where.length]
            embedded = where.is_embed
            part |= True if embedded is None else embedded[: len(part)].to(torch.bool)
    return marked


def _model_index(name: str) -> int | None:
    """A layer's index in the model, which vLLM tells by its name alone
    ("model.layers.3.self_attn.attn"); None where the name has no number, or several.
    """
    numbers = [part for part in name.split(".") if part.isdecimal()]
    return int(numbers[0]) if len(numbers) == 1 else None
