"""One sample under many policies: its prompt is read for all of them, and each branches from it.

A row depends on the model, the sample, the spec and the settings, and on nothing else: branches go
on one by one, as the bits of a batch depend on who is in it
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
"""Errors that the next sample would meet as well, whatever it is: they end the run."""


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
    """One row for the full cache (:data:`FULL`) and for each spec; those that read column sums come
    last. What Foveate refuses is a row with an ``error``: a spec's, or, where the prompt cannot be
    read, every spec's.

    The full cache's answer is what the others are compared with: by the tokens of their own greedy
    answers, and by what they think of its tokens, one after the other. A policy that agrees with
    all of it is not asked to say it once more, unless ``timed``.

    A prompt of more tokens than ``longest_prompt``, images counted, loses its middle, before the
    chat template. Where a budget is less than what its policy always keeps, it is raised, and the
    row says so; with ``strict`` it is refused, but of the specs in ``raised``.
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
    """How a spec's policy needs the prompt: what of it is computed, and whether column sums are."""
    try:
        policy = reading.policy(spec)
    except FoveateError:  # which its row will say
        return "", False
    return "" if policy.prune is None else print_value(policy.prune), policy.reads_column_sums


def _row(reading: Reading, spec: str, full: AnswerRow, strict: bool) -> Row:
    """The spec's row, or what refuses it."""
    try:
        answer = full if spec == FULL else answer_alone(reading, reading.policy(spec), full, strict)
        return row(reading, spec, answer, full)
    except FoveateError as error:
        return failed(reading.task, reading.sample, spec, error)


@torch.no_grad()
def answer_alone(
    reading: Reading, policy: Policy, full: AnswerRow | None, strict: bool
) -> AnswerRow:
    """What the prompt's cache, as a policy compresses it, makes of the sample; ``full`` is what the
    full cache makes of it, and None for that one itself.
    """
    recording, prefill_s = reading.recorded(sums=policy.reads_column_sums, prune=policy.prune)
    loaded = reading.loaded
    with compress(loaded.model, policy, tokenizer=loaded.tokenizer, strict=strict) as session:
        cache = branch(session, recording)
        stats, shown = session.stats, _shown(reading, recording, cache, full)
        first = with_the_rest(session.model, cache, recording.logits, reading.rest)
        spare = session.fork(cache) if reading.task.reference else None
        tokens, thought, seconds = _said(reading, session, cache, first, full)
        reference = full.reference if full else reference_of(reading, tokens)
        of_reference = None
        if spare is not None and reference:
            of_reference = teacher_forced(session, spare, first, reference)
    said = loaded.tokenizer.decode(tokens, skip_special_tokens=True).strip()
    return AnswerRow(
        tokens, thought, said, reference, of_reference, stats, prefill_s, seconds, shown
    )


def _shown(
    reading: Reading, recording: Recording, cache: DynamicCache, full: AnswerRow | None
) -> Row:
    """What a report draws of the first samples."""
    if not reading.timed:
        return {}
    return {"kept_places": kept_places(cache)} if full else {"analyses": analysed(recording)}


def _said(
    reading: Reading, session: Session, cache: DynamicCache, first: Tensor, full: AnswerRow | None
) -> tuple[list[int], TeacherForced, float | None]:
    """The greedy answer, what is thought of the full cache's, and seconds, where it was timed."""
    listening = session.fork(cache)
    thought = teacher_forced(session, listening, first, full.tokens) if full else None
    if full and thought and not reading.timed and agrees(thought, full):
        return full.tokens, thought, None
    start = now(input_device(session.model))
    tokens = greedy(session.model, cache, first, reading.task.longest)
    seconds = now(input_device(session.model)) - start
    timed = seconds if reading.timed else None
    return tokens, thought or teacher_forced(session, listening, first, tokens), timed


def agrees(thought: TeacherForced, full: AnswerRow) -> bool:
    """Whether each token of the full cache's answer is the likeliest here, too."""
    return thought.logits.argmax(-1).tolist() == full.tokens


def reference_of(reading: Reading, tokens: Sequence[int]) -> list[int]:
    """The tokens of the text to compare with; none where a task has no such text."""
    task, answers = reading.task, reading.sample.answers
    has_one = task.reference and answers
    return (
        reference_tokens(reading.loaded, answers[0], tokens)[: task.reference_length]
        if has_one
        else []
    )


def failed(task: Task, sample: Sample, spec: str, error: FoveateError) -> Row:
    """A row that holds the error instead of an answer. Raises an error that is of the run."""
    if isinstance(error, OF_THE_RUN):
        raise error
    said = {"type": type(error).__name__, "message": str(error)}
    return {
        "task": task.name,
        "sample": sample.name,
        "spec": spec,
        "labels": dict(sample.labels),
        "error": said,
    }
