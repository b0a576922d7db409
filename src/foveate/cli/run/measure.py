"""Measurement of one answer under one policy: its memory and its times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList

from foveate.cli.prompt import common_prefix
from foveate.compression.composition import policy as policy_of
from foveate.compression.labels import budget_of, label
from foveate.hf import compress
from foveate.hf.layer.stats import Remaining, now
from foveate.hf.model.devices import input_device
from foveate.loading.model import Loaded
from foveate.policies.policy import Policy
from foveate.prompts.prompt import Prompt


@dataclass(frozen=True)
class ComparisonRow:
    """Row of the comparison. Bytes and kept tokens are counted right after the compression.

    Times are medians over the rounds, and ``decode_ms_per_token`` over all tokens of all rounds
    (None if the answer is one token long). ``first_divergence`` is the index of the first token
    that differs from the full cache's answer (None if they are equal). ``visual_computed`` is the
    mean share of visual tokens that the layers computed (None if the method prunes none).
    ``remaining`` is the share of the prompt that each part of the policy leaves.
    """

    method: str
    budget: str | None
    answer: str
    kept_tokens: float
    kv_bytes: int
    prefill_s: float
    compress_s: float
    decode_ms_per_token: float | None
    first_divergence: int | None
    visual_computed: float | None = None
    remaining: Remaining | None = None


class Times(NamedTuple):
    """Seconds of one answer: the prefill, the compression, and each decoding step."""

    prefill: float
    compress: float
    steps: list[float]


class Measured(NamedTuple):
    """Measurement of one policy: its row, the answer's token ids, and the times of every round.

    ``kept_share`` [n] is the share of heads that keep each token of the prompt; ``computed`` [n] is
    True for tokens that all layers computed.
    """

    row: ComparisonRow
    ids: list[int]
    kept_share: Tensor
    computed: Tensor
    turns: tuple[Times, ...]


class Clock(StoppingCriteria):
    """Stopping criterion that never stops, and records the time of each token."""

    def __init__(self, tick: Callable[[], object]):
        """Set the function ``tick``, which is called after each token."""
        self.times: list[float] = []
        self._tick = tick

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Record the time; ``generate`` calls this after each token."""
        self.times.append(now(input_ids.device))
        self._tick()
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


def warm_up(loaded: Loaded, prompt: Prompt) -> None:
    """Generate two tokens with the full cache, so that the first row includes no start-up time."""
    measure(loaded, prompt, policy_of("full"), 2, lambda: None)


def measure(
    loaded: Loaded, prompt: Prompt, policy: Policy, tokens: int, tick: Callable[[], object]
) -> Measured:
    """Generate an answer greedily under the policy.

    Args:
        loaded: the model.
        prompt: the prompt.
        policy: the policy of its cache.
        tokens: the maximum length of the answer.
        tick: a function that is called after each token.
    """
    model, clock = loaded.model, Clock(tick)
    with compress(model, policy, tokenizer=loaded.tokenizer) as session:
        start = now(input_device(model))
        done = model.generate(  # type: ignore[operator]
            **prompt.inputs,
            max_new_tokens=tokens,
            do_sample=False,
            num_beams=1,
            stopping_criteria=StoppingCriteriaList([clock]),
        )
        stats, kept_share = session.stats, session.held_share()[0, : prompt.tokens].cpu()
        all_computed = session.computed_share()[0, : prompt.tokens].cpu() == 1
    computed = stats.computed
    ids: list[int] = done[0, prompt.tokens :].tolist()
    steps = [later - early for early, later in zip(clock.times, clock.times[1:], strict=False)]
    turns = (Times(clock.times[0] - start - stats.seconds, stats.seconds, steps),)
    row = ComparisonRow(
        method=label(policy),
        budget=budget_of(policy),
        answer=loaded.tokenizer.decode(ids, skip_special_tokens=True).strip(),
        kept_tokens=stats.kept_tokens,
        kv_bytes=stats.bytes_after,
        **_medians(turns),
        first_divergence=None,
        visual_computed=None if computed is None else round(float(computed.mean()), 4),
        remaining=stats.remaining,
    )
    return Measured(row, ids, kept_share, all_computed, turns)


def _medians(turns: Sequence[Times]) -> dict[str, Any]:
    """Return a row's times: medians over the rounds."""
    steps = [step for turn in turns for step in turn.steps]
    return {
        "prefill_s": round(median(turn.prefill for turn in turns), 4),
        "compress_s": round(median(turn.compress for turn in turns), 4),
        "decode_ms_per_token": round(median(steps) * 1e3, 3) if steps else None,
    }


def add_round(before: Measured, latest: Measured) -> Measured:
    """Add the times of one more round to a measurement."""
    turns = (*before.turns, *latest.turns)
    return before._replace(row=replace(before.row, **_medians(turns)), turns=turns)


def against(row: ComparisonRow, ids: list[int], full: list[int]) -> ComparisonRow:
    """Return the row with the index at which its answer departs from the full cache's."""
    return row if ids == full else replace(row, first_divergence=common_prefix(ids, full))
