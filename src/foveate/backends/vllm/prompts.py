"""What a worker knows of the prompts that are being read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from foveate.backends.vllm.gap import Gap
from foveate.core.policy import Policy
from foveate.core.reading import PromptReading
from foveate.core.tensors import image_index, spot_index

VISUAL = ("image", "video")


@dataclass
class Prompt:
    """One request's prompt of ``length`` tokens. ``vision`` is True at visual ones."""

    length: int
    vision: Bool[Tensor, "n"]
    reading: PromptReading
    kept: dict[int, Int[Tensor, "h k"]] = field(default_factory=dict)  # positions, by ordinal

    def __post_init__(self) -> None:
        self.image: Int[Tensor, "1 n"] = image_index(self.vision[None])
        self.spot: Int[Tensor, "1 n"] = spot_index(self.vision[None])


class Row(NamedTuple):
    """A request in a pass that adds ``new`` tokens to ``computed``; its queries start at ``start``
    of the pass's. ``table`` is its whole row of the block table, ``gap`` the blocks that its prompt
    leaves, and ``freed`` how many slots these have. ``budget`` is what scores are told of.
    """

    prompt: Prompt
    gap: Gap
    freed: int
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
        """Tokens of this pass that stand after the prompt: a preempted answer, read again."""
        return max(0, self.computed + self.new - self.prompt.length)


class Prompts:
    """The prompts of a worker's requests, and the policy that they are under.

    ``runner`` is vLLM's model runner, ``ordinals`` says which of the compressed layers a name is.
    ``records`` says whether kept positions are remembered; on a GPU they would take memory that
    vLLM has given to its pool.
    """

    def __init__(self, policy: Policy, ordinals: Mapping[str, int], runner: Any):
        self.policy, self.ordinals = policy, ordinals
        self.model_indices = {ordinal: _model_index(name) for name, ordinal in ordinals.items()}
        self.records = torch.device(runner.device).type == "cpu"
        self._runner = runner
        self._known: dict[str, Prompt] = {}
        self._serving = False
        self.seconds = 0.0  # spent on compressing, since they were taken last

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Around a pass of requests; what runs outside is a warm-up, whatever the batch holds."""
        self._serving = True
        try:
            yield
        finally:
            self._serving = False

    def take_seconds(self) -> float:
        """The seconds that were spent on compressing since this was asked last."""
        taken, self.seconds = self.seconds, 0.0
        return taken

    @property
    def rows(self) -> int:
        """Requests in this pass; in a warm-up pass there are none."""
        return len(self._runner.input_batch.req_ids) if self._serving else 0

    @property
    def reading(self) -> bool:
        """Whether this pass reads tokens of a prompt."""
        batch, n = self._runner.input_batch, self.rows
        return bool((batch.num_computed_tokens_cpu[:n] < batch.num_prompt_tokens[:n]).any())

    def length(self, row: int) -> int:
        """Tokens of the prompt in that row of the batch."""
        return int(self._runner.input_batch.num_prompt_tokens[row])

    def prompt(self, row: int) -> Prompt:
        """The prompt in that row of the batch."""
        name = self._runner.input_batch.req_ids[row]
        if name not in self._known:
            length = self.length(row)
            features = self._runner.requests[name].mm_features
            vision = visual(features, length).to(self._runner.device)
            reading = PromptReading(self.policy, len(self.ordinals))
            self._known[name] = Prompt(length, vision, reading)
        return self._known[name]

    def forget(self, names: Iterable[str]) -> None:
        """Drops what is known of requests that ended, or that will be read again from the start."""
        for name in names:
            self._known.pop(name, None)


def visual(features: Iterable[Any] | None, length: int) -> Bool[Tensor, "n"]:
    """True at the tokens that stand for images and videos, by vLLM's ``mm_features``."""
    marked = torch.zeros(length, dtype=torch.bool)
    for feature in features or ():
        if feature.modality in VISUAL:
            where = feature.mm_position
            part = marked[where.offset : where.offset + where.length]
            part |= True if where.is_embed is None else where.is_embed.to(torch.bool)
    return marked


def _model_index(name: str) -> int | None:
    """A layer's index in the model, which vLLM tells by its name alone
    ("model.layers.3.self_attn.attn"); None where the name has no number, or several.
    """
    numbers = [part for part in name.split(".") if part.isdecimal()]
    return int(numbers[0]) if len(numbers) == 1 else None
