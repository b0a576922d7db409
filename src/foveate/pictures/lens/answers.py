"""What a model answers from what each policy keeps of a prompt that was read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from foveate.hf import branch, compress
from foveate.hf.measuring.answer import greedy
from foveate.hf.probe.follow_up import ends
from foveate.methods.full import full
from foveate.pictures.lens.chosen import Readings
from foveate.policies.policy import Policy


class LensAnswer(NamedTuple):
    """What the model says under one policy.

    ``tokens`` are with the one that ends it, ``text`` is without special ones; ``cut`` says that it
    would have gone on, ``same`` that its tokens are those of the full cache's answer.
    """

    spec: str
    tokens: list[int]
    text: str
    cut: bool
    same: bool


class Answers(NamedTuple):
    """The full cache's answer, and one for each method at each of its budgets."""

    full: LensAnswer
    choices: list[list[LensAnswer]]


Tell = Callable[[Policy, int, int], None]
"""Told before each answer of its policy, how many are there, and how many there will be."""


def answers(
    readings: Readings,
    policies: Sequence[Sequence[Policy]],
    reader: Any,
    longest: int,
    tell: Tell = lambda policy, done, of: None,
) -> Answers:
    """Greedy answers of at most so many tokens. Each goes on from the reading that its policy
    chooses from, so that it is the one that a block of its own gives.
    """
    whole, words = full(), getattr(reader, "tokenizer", reader)
    order = [whole, *(policy for each in policies for policy in each)]
    answers_by_spec: dict[str, list[int]] = {}
    for done, policy in enumerate(order):
        if policy.spec not in answers_by_spec:
            tell(policy, done, len(order))
            answers_by_spec[policy.spec] = _tokens(readings, policy, reader, longest)
    stop = ends(readings.model)

    def answer(policy: Policy) -> LensAnswer:
        tokens = answers_by_spec[policy.spec]
        text = words.decode(tokens, skip_special_tokens=True).strip()
        same = tokens == answers_by_spec[whole.spec]
        return LensAnswer(policy.spec, tokens, text, tokens[-1] not in stop, same)

    return Answers(answer(whole), [[answer(policy) for policy in each] for each in policies])


@torch.no_grad()
def _tokens(readings: Readings, policy: Policy, reader: Any, longest: int) -> list[int]:
    recording = readings.of(policy)
    with compress(readings.model, policy, tokenizer=reader) as session:
        return greedy(session.model, branch(session, recording), recording.logits, longest)
