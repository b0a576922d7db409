"""Several samples under many policies: prompts are read one by one, answers are decoded together.

Each prompt is read, compressed and asked as if it were alone
(:mod:`foveate_lab.eval.answering.measure`), so what a row says of its cache is the same. Answers
are then decoded as rows of one batch: a row's logits are its own, to the rounding of the attention,
whoever is beside it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from foveate.errors import FoveateError
from foveate.hf import Session, Stats, branch, compress
from foveate.hf.measuring.answer import (
    PrefilledPrompt,
    TeacherForced,
    can_join,
    check_joins,
    check_places,
    greedy_together,
    teacher_forced_together,
    with_the_rest,
)
from foveate.loading.model import Loaded
from foveate.policies.policy import Policy
from foveate.prompts.sample import Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.measure import agrees, answer_alone, failed, read_as, reference_of
from foveate_lab.eval.answering.reading import FULL, Reading, read_prompt
from foveate_lab.eval.answering.row import AnswerRow, Row, row
from foveate_lab.eval.task_registry import Task


class Begun(NamedTuple):
    """A prompt that a policy has compressed, ready to answer. ``full`` is the full cache's answer,
    None of that one itself.
    """

    reading: Reading
    full: AnswerRow | None
    policy: Policy
    prefilled: PrefilledPrompt
    stats: Stats
    prefill_s: float


def measured_together(
    loaded: Loaded,
    task: Task,
    samples: Sequence[Sample],
    specs: Sequence[str],
    protocol: Protocol,
    *,
    longest_prompt: int | None = None,
    strict: bool = False,
    raised: Container[str] = (),
) -> Iterator[list[Row]]:
    """The rows of :func:`foveate_lab.eval.answering.measure.measured` of each sample, spec by spec;
    ``batch`` is the number of answers that were decoded together, in those where it is more than
    one.

    Where what is kept changes while decoding, or is not held in full precision, answers are given
    one by one. Nothing is timed.

    Raises:
        UnsupportedModel: its answers cannot be decoded together.
    """
    check_joins(loaded.model)
    readings: list[Reading] = []
    for sample in samples:
        try:
            reading = read_prompt(
                loaded, task, sample, protocol, timed=False, longest_prompt=longest_prompt
            )
            readings.append(reading)
        except FoveateError as error:
            yield [failed(task, sample, spec, error) for spec in (FULL, *specs)]
    asking: list[tuple[Reading, AnswerRow]] = []
    full_answers = _answers([(reading, None) for reading in readings], FULL, strict)
    for reading, answer in zip(readings, full_answers, strict=True):
        if isinstance(answer, FoveateError):
            yield [failed(task, reading.sample, spec, answer) for spec in (FULL, *specs)]
        else:
            asking.append((reading, answer))
    yield [_row(reading, full, FULL, full) for reading, full in asking]
    for spec in sorted(
        specs, key=lambda spec: max((read_as(one, spec) for one, _ in asking), default=("", False))
    ):
        answers = _answers(asking, spec, strict and spec not in raised)
        yield [_row(*one, spec, answer) for one, answer in zip(asking, answers, strict=True)]


def _row(reading: Reading, full: AnswerRow, spec: str, answer: AnswerRow | FoveateError) -> Row:
    """The spec's row, or what refuses it."""
    try:
        if isinstance(answer, FoveateError):
            raise answer
        return row(reading, spec, answer, full)
    except FoveateError as error:
        return failed(reading.task, reading.sample, spec, error)


@torch.no_grad()
def _answers(
    asking: Sequence[tuple[Reading, AnswerRow | None]], spec: str, strict: bool
) -> list[AnswerRow | FoveateError]:
    """What a spec makes of each sample, or what refuses it."""
    begun = [_begun(reading, full, spec, strict) for reading, full in asking]
    together = [one for one in begun if isinstance(one, Begun)]
    said = iter(_said(together) if together else ())
    return [next(said) if isinstance(one, Begun) else one for one in begun]


def _begun(
    reading: Reading, full: AnswerRow | None, spec: str, strict: bool
) -> Begun | AnswerRow | FoveateError:
    """The prompt's cache, ready to answer; the answer where it has to be given alone."""
    model, tokenizer = reading.loaded.model, reading.loaded.tokenizer
    try:
        policy = reading.policy(spec)
        if not can_join(policy):
            return answer_alone(reading, policy, full, strict)
        recording, prefill_s = reading.recorded(sums=policy.reads_column_sums, prune=policy.prune)
        with compress(model, policy, tokenizer=tokenizer, strict=strict) as session:
            cache = branch(session, recording)
            stats = session.stats
            first = with_the_rest(session.model, cache, recording.logits, reading.rest)
        return Begun(reading, full, policy, PrefilledPrompt(cache, first), stats, prefill_s)
    except FoveateError as error:
        return error


def _said(begun: Sequence[Begun]) -> list[AnswerRow]:
    """The answers to all of them."""
    loaded, task = begun[0].reading.loaded, begun[0].reading.task
    with compress(loaded.model, begun[0].policy, tokenizer=loaded.tokenizer) as session:
        tokens, thought = _answered(session, begun, task.longest)
        references = [
            one.full.reference if one.full else reference_of(one.reading, said)
            for one, said in zip(begun, tokens, strict=True)
        ]
        referenced = [n for n, reference in enumerate(references) if reference]
        each = [references[n] for n in referenced]
        losses = teacher_forced_together(session, [begun[n].prefilled for n in referenced], each)
    of_reference = dict(zip(referenced, losses, strict=True))
    decode = partial(loaded.tokenizer.decode, skip_special_tokens=True)
    return [
        AnswerRow(
            tokens=tokens[n],
            teacher_forced=thought[n],
            said=decode(tokens[n]).strip(),
            reference=references[n],
            of_reference=of_reference.get(n),
            stats=one.stats,
            prefill_s=one.prefill_s,
            seconds=None,
            shown={},
            batch=len(begun),
        )
        for n, one in enumerate(begun)
    ]


def _answered(
    session: Session, begun: Sequence[Begun], longest: int
) -> tuple[list[list[int]], list[TeacherForced]]:
    """The greedy answers, and what is thought of the full cache's: those who agree with all of it
    are not asked to say it once more.
    """
    prefilled = [one.prefilled for one in begun]
    fulls = [one.full for one in begun if one.full]
    if not fulls:
        check_places(session, prefilled[0].cache, prefilled[0].first.argmax(-1))
        tokens = greedy_together(session, prefilled, longest)
        return tokens, teacher_forced_together(session, prefilled, tokens)
    tokens = [full.tokens for full in fulls]
    thought = teacher_forced_together(session, prefilled, tokens)
    others = [n for n, full in enumerate(fulls) if not agrees(thought[n], full)]
    said = greedy_together(session, [prefilled[n] for n in others], longest)
    for n, answer in zip(others, said, strict=True):
        tokens[n] = answer
    return tokens, thought
