"""One sample under many policies: one prefill per kind of policy, and a branch for each spec.

A row depends only on the model, the sample, the spec and the settings. Branches are decoded one by
one, because the bits of a batch depend on its other rows
(:mod:`foveate_lab.eval.answering.together`).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache

from foveate.errors import (
    CannotWrite,
    ClusterFailed,
    FoveateError,
    MissingPackage,
    ModelNotFound,
)
from foveate.hf import Recording, Session, branch, compress
from foveate.hf.layer.stats import now
from foveate.hf.measuring.answer import TeacherForced, greedy, teacher_forced, with_the_rest
from foveate.hf.model.devices import input_device
from foveate.loading.model import Loaded
from foveate.policies.policy import Policy
from foveate.policies.spec import print_value
from foveate.prompts.sample import Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.analyses import analysed, kept_places
from foveate_lab.eval.answering.perplexity import reference_tokens
from foveate_lab.eval.answering.reading import FULL, Reading, read_prompt
from foveate_lab.eval.answering.row import AnswerRow, Row, row
from foveate_lab.eval.task_registry import Task

OF_THE_RUN = (CannotWrite, ClusterFailed, MissingPackage, ModelNotFound)
"""Errors that would recur for every sample: they end the run."""


def measured(
    loaded: Loaded,
    task: Task,
    sample: Sample,
    specs: Sequence[str],
    protocol: Protocol,
    *,
    timed: bool = False,
    longest_prompt: int | None = None,
    strict: bool = False,
    raised: Container[str] = (),
) -> Iterator[Row]:
    """Yield a row for the full cache (:data:`FULL`) and each spec, column-sum readers last.

    A refused spec gives a row with an ``error``; if the prompt is refused, every spec does.

    Other caches are compared with the full cache's answer in two ways: by the tokens of their own
    greedy answers, and by their predictions when its tokens are fed one by one. If a policy
    predicts all of these tokens, its answer is not decoded again, unless ``timed``.

    A prompt of more than ``longest_prompt`` tokens, images included, loses its middle, before the
    chat template. A budget below what its policy always keeps is raised, and the row records it;
    with ``strict`` it is refused, except for the specs in ``raised``.
    """
    try:
        reading = read_prompt(
            loaded, task, sample, protocol, timed=timed, longest_prompt=longest_prompt
        )
        full = answer_alone(reading, reading.policy(FULL), None, strict)
    except FoveateError as error:
        yield from [failed(task, sample, spec, error) for spec in (FULL, *specs)]
        return
    yield _row(reading, FULL, full, strict)
    for spec in sorted(specs, key=lambda spec: read_as(reading, spec)):
        yield _row(reading, spec, full, strict and spec not in raised)


def read_as(reading: Reading, spec: str) -> tuple[str, bool]:
    """Return a sort key of a spec's prefill: its pruning, and if it needs column sums."""
    try:
        policy = reading.policy(spec)
    except FoveateError:  # its row will record the error
        return "", False
    return "" if policy.prune is None else print_value(policy.prune), policy.reads_column_sums


def _row(reading: Reading, spec: str, full: AnswerRow, strict: bool) -> Row:
    """Return the spec's row, or a row with the error that refused it."""
    try:
        answer = full if spec == FULL else answer_alone(reading, reading.policy(spec), full, strict)
        return row(reading, spec, answer, full)
    except FoveateError as error:
        return failed(reading.task, reading.sample, spec, error)


@torch.no_grad()
def answer_alone(
    reading: Reading, policy: Policy, full: AnswerRow | None, strict: bool
) -> AnswerRow:
    """Answer the sample with the prompt's cache as a policy compresses it.

    ``full`` is the full cache's answer, or None to compute that answer itself.
    """
    recording, prefill_s = reading.recorded_for(policy)
    loaded = reading.loaded
    with compress(loaded.model, policy, tokenizer=loaded.tokenizer, strict=strict) as session:
        cache = branch(session, recording)
        stats, figures = session.stats, _figures(reading, recording, cache, full)
        first = with_the_rest(session.model, cache, recording.logits, reading.rest)
        spare = session.fork(cache) if reading.task.reference else None
        tokens, forced, seconds = _decode(reading, session, cache, first, full)
        reference = full.reference if full else reference_of(reading, tokens)
        of_reference = None
        if spare is not None and reference:
            of_reference = teacher_forced(session, spare, first, reference)
    text = loaded.tokenizer.decode(tokens, skip_special_tokens=True).strip()
    return AnswerRow(
        tokens, forced, text, reference, of_reference, stats, prefill_s, seconds, figures
    )


def _figures(
    reading: Reading, recording: Recording, cache: DynamicCache, full: AnswerRow | None
) -> Row:
    """Return the data for a report's figures; only for timed samples."""
    if not reading.timed:
        return {}
    return {"kept_places": kept_places(cache)} if full else {"analyses": analysed(recording)}


def _decode(
    reading: Reading, session: Session, cache: DynamicCache, first: Tensor, full: AnswerRow | None
) -> tuple[list[int], TeacherForced, float | None]:
    """Return the greedy answer, predictions for the full cache's answer, and seconds if timed."""
    fork = session.fork(cache)
    forced = teacher_forced(session, fork, first, full.tokens) if full else None
    if full and forced and not reading.timed and agrees(forced, full):
        return full.tokens, forced, None
    start = now(input_device(session.model))
    tokens = greedy(session.model, cache, first, reading.task.longest)
    seconds = now(input_device(session.model)) - start
    timed = seconds if reading.timed else None
    return tokens, forced or teacher_forced(session, fork, first, tokens), timed


def agrees(forced: TeacherForced, full: AnswerRow) -> bool:
    """Check if every token of the full cache's answer is the most likely here, too."""
    return forced.logits.argmax(-1).tolist() == full.tokens


def reference_of(reading: Reading, tokens: Sequence[int]) -> list[int]:
    """Return the tokens of the reference text; empty if the task has none."""
    task, answers = reading.task, reading.sample.answers
    has_reference = task.reference and answers
    return (
        reference_tokens(reading.loaded, answers[0], tokens)[: task.reference_length]
        if has_reference
        else []
    )


def failed(task: Task, sample: Sample, spec: str, error: FoveateError) -> Row:
    """Return a row with the error in place of an answer; re-raise an error of the whole run."""
    if isinstance(error, OF_THE_RUN):
        raise error
    details = {"type": type(error).__name__, "message": str(error)}
    return {
        "task": task.name,
        "sample": sample.name,
        "spec": spec,
        "labels": dict(sample.labels),
        "error": details,
    }
