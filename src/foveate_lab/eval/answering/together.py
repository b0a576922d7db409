"""Several samples under many policies: separate prefills, answers decoded together.

Each prompt is prefilled and compressed as if it were alone
(:mod:`foveate_lab.eval.answering.measure`), so a row's cache statistics are the same. Answers are
then decoded as rows of one batch; a row's logits do not depend on the others, up to rounding in the
attention.
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
    """Prompt that a policy has compressed, ready to answer.

    ``full`` is the full cache's answer, None for that answer itself.
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
    """Yield the rows of :func:`foveate_lab.eval.answering.measure.measured` of all samples, by
    spec. ``batch`` in a row is the number of answers decoded together, if more than one.

    Answers are decoded one by one if a policy evicts while decoding or stores pairs in reduced
    precision. Nothing is timed.

    Raises:
        UnsupportedModel: the model cannot decode answers together.
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
    with_full: list[tuple[Reading, AnswerRow]] = []
    full_answers = _answers([(reading, None) for reading in readings], FULL, strict)
    for reading, answer in zip(readings, full_answers, strict=True):
        if isinstance(answer, FoveateError):
            yield [failed(task, reading.sample, spec, answer) for spec in (FULL, *specs)]
        else:
            with_full.append((reading, answer))
    yield [_row(reading, full, FULL, full) for reading, full in with_full]
    for spec in sorted(
        specs, key=lambda spec: max((read_as(r, spec) for r, _ in with_full), default=("", False))
    ):
        answers = _answers(with_full, spec, strict and spec not in raised)
        yield [_row(*pair, spec, answer) for pair, answer in zip(with_full, answers, strict=True)]


def _row(reading: Reading, full: AnswerRow, spec: str, answer: AnswerRow | FoveateError) -> Row:
    """Return the spec's row, or a row with the error that refused it."""
    try:
        if isinstance(answer, FoveateError):
            raise answer
        return row(reading, spec, answer, full)
    except FoveateError as error:
        return failed(reading.task, reading.sample, spec, error)


@torch.no_grad()
def _answers(
    with_full: Sequence[tuple[Reading, AnswerRow | None]], spec: str, strict: bool
) -> list[AnswerRow | FoveateError]:
    """Return each sample's answer under a spec, or the error that refused it."""
    states = [_begin(reading, full, spec, strict) for reading, full in with_full]
    together = [state for state in states if isinstance(state, Begun)]
    decoded = iter(_decode_all(together) if together else ())
    return [next(decoded) if isinstance(state, Begun) else state for state in states]


def _begin(
    reading: Reading, full: AnswerRow | None, spec: str, strict: bool
) -> Begun | AnswerRow | FoveateError:
    """Prepare the prompt's compressed cache; return the answer if it must be decoded alone."""
    model, tokenizer = reading.loaded.model, reading.loaded.tokenizer
    try:
        policy = reading.policy(spec)
        if not can_join(policy):
            return answer_alone(reading, policy, full, strict)
        recording, prefill_s = reading.recorded_for(policy)
        with compress(model, policy, tokenizer=tokenizer, strict=strict) as session:
            cache = branch(session, recording)
            stats = session.stats
            first = with_the_rest(session.model, cache, recording.logits, reading.rest)
        return Begun(reading, full, policy, PrefilledPrompt(cache, first), stats, prefill_s)
    except FoveateError as error:
        return error


def _decode_all(begun: Sequence[Begun]) -> list[AnswerRow]:
    """Return the answers of all prepared prompts."""
    loaded, task = begun[0].reading.loaded, begun[0].reading.task
    with compress(loaded.model, begun[0].policy, tokenizer=loaded.tokenizer) as session:
        tokens, forced = _decode_tokens(session, begun, task.longest)
        references = [
            state.full.reference if state.full else reference_of(state.reading, answer)
            for state, answer in zip(begun, tokens, strict=True)
        ]
        referenced = [n for n, reference in enumerate(references) if reference]
        fed = [references[n] for n in referenced]
        losses = teacher_forced_together(session, [begun[n].prefilled for n in referenced], fed)
    of_reference = dict(zip(referenced, losses, strict=True))
    decode = partial(loaded.tokenizer.decode, skip_special_tokens=True)
    return [
        AnswerRow(
            tokens=tokens[n],
            teacher_forced=forced[n],
            text=decode(tokens[n]).strip(),
            reference=references[n],
            of_reference=of_reference.get(n),
            stats=state.stats,
            prefill_s=state.prefill_s,
            seconds=None,
            figures={},
            batch=len(begun),
        )
        for n, state in enumerate(begun)
    ]


def _decode_tokens(
    session: Session, begun: Sequence[Begun], longest: int
) -> tuple[list[list[int]], list[TeacherForced]]:
    """Return the greedy answers, and predictions for the full cache's answers.

    Prompts whose predictions all agree with it are not decoded again.
    """
    prefilled = [state.prefilled for state in begun]
    fulls = [state.full for state in begun if state.full]
    if not fulls:
        check_places(session, prefilled[0].cache, prefilled[0].first.argmax(-1))
        tokens = greedy_together(session, prefilled, longest)
        return tokens, teacher_forced_together(session, prefilled, tokens)
    tokens = [full.tokens for full in fulls]
    forced = teacher_forced_together(session, prefilled, tokens)
    differing = [n for n, full in enumerate(fulls) if not agrees(forced[n], full)]
    answers = greedy_together(session, [prefilled[n] for n in differing], longest)
    for n, answer in zip(differing, answers, strict=True):
        tokens[n] = answer
    return tokens, forced
