"""Answers to all questions about a receipt under many policies, with as few passes as possible.

`foveate eval` prefills a prompt for every question, and decodes policy by policy. Here questions of
a receipt share its prefill and each policy's compression if the question comes later, and answers
to a question under all policies are decoded as one batch: a step of a small model on a CPU takes
hardly longer for 30 answers than for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice
from time import perf_counter
from typing import Any, NamedTuple

import torch

from foveate.errors import FoveateError
from foveate.hf import Stats, branch, compress
from foveate.hf.measuring.answer import (
    PrefilledPrompt,
    can_join,
    greedy,
    greedy_together,
    with_the_rest,
)
from foveate.loading.model import Loaded
from foveate.policies.policy import Policy
from foveate.prompts.sample import Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.measure import failed, read_as
from foveate_lab.eval.answering.reading import FULL, Reading, read_prompt
from foveate_lab.eval.task_registry import Task

Row = dict[str, Any]
LONGER = 4  # tokens by which an answer may be longer than the right one's characters
ROWS = 40  # answers decoded together at most


class Compressed(NamedTuple):
    """A question, and the prompt before it, compressed under a policy."""

    spec: str
    policy: Policy
    reading: Reading
    prompt: PrefilledPrompt
    stats: Stats
    seconds: dict[str, float]


def receipts(task: Task, count: int) -> Iterator[tuple[Sample, ...]]:
    """Yield the questions of each of the first receipts, or groups of receipts."""
    samples = task.samples(2**31, 0)
    grouped = groupby(samples, key=lambda sample: sample.name.partition("/")[0])
    for _, questions in islice(grouped, count):
        yield tuple(questions)


@torch.no_grad()
def answers(
    loaded: Loaded,
    task: Task,
    questions: Sequence[Sample],
    missing: Callable[[Sample], Sequence[str]],
    protocol: Protocol,
) -> Iterator[Row]:
    """Yield a row for every question and missing spec; a refused spec has an ``error``."""
    asked = [(sample, specs) for sample in questions if (specs := missing(sample))]
    readings = [
        read_prompt(loaded, task, sample, protocol, timed=False, longest_prompt=None)
        for sample, _ in asked
    ]
    alone = [(reading, specs) for reading, (_, specs) in zip(readings, asked, strict=True)]
    shares = protocol == "query-agnostic" and readings and _same_beginning(readings)
    for together in [alone] if shares else [[one] for one in alone]:
        yield from _answer(task, together)


def _same_beginning(readings: Sequence[Reading]) -> bool:
    """Check if the prompts are the same up to their questions."""
    starts = [reading.prompt.inputs["input_ids"][:, : reading.cut] for reading in readings]
    return all(torch.equal(starts[0], start) for start in starts[1:])


def _answer(task: Task, asked: Sequence[tuple[Reading, Sequence[str]]]) -> Iterator[Row]:
    """Yield the rows of questions whose prompts are the same where they are compressed."""
    first = asked[0][0]
    specs = list(dict.fromkeys(spec for _, mine in asked for spec in mine))
    ready: list[Compressed] = []
    for spec in sorted(specs, key=lambda spec: read_as(first, spec)):
        readings = [reading for reading, mine in asked if spec in mine]
        try:
            ready += _compressed(first, readings, spec)
        except FoveateError as error:
            yield from (failed(task, reading.sample, spec, error) for reading in readings)
    for reading, _ in asked:
        yield from _decoded(task, [one for one in ready if one.reading is reading])


def _compressed(first: Reading, readings: Sequence[Reading], spec: str) -> list[Compressed]:
    """Compress the first reading's prompt under a policy, and let each question follow."""
    policy, model = first.policy(spec), first.loaded.model
    recording, prefill_s = first.recorded_for(policy)
    with compress(model, policy, tokenizer=first.loaded.tokenizer) as session:
        start = perf_counter()
        cache = branch(session, recording)
        seconds = {"prefill_s": round(prefill_s, 3), "compress_s": round(perf_counter() - start, 3)}
        prompt, stats = PrefilledPrompt(cache, recording.logits), session.stats
    return [Compressed(spec, policy, reading, prompt, stats, seconds) for reading in readings]


def _decoded(task: Task, ready: Sequence[Compressed]) -> Iterator[Row]:
    """Decode a question's answers; those from the full cache alone, as they are far longer.

    An answer that is longer than the right one is wrong, and ends soon.
    """
    apart = [one for one in ready if one.spec == FULL or not can_join(one.policy)]
    joined = [one for one in ready if one not in apart]
    batches = [joined[at : at + ROWS] for at in range(0, len(joined), ROWS)]
    for part in [*([one] for one in apart), *batches]:
        start, reading = perf_counter(), part[0].reading
        limit = min(task.longest, len(reading.sample.answers[0]) + LONGER)
        tokens = _tokens(reading, part, limit)
        each = round((perf_counter() - start) / len(part), 3)
        for one, mine in zip(part, tokens, strict=True):
            yield _row(task, one, mine, each)


def _tokens(reading: Reading, part: Sequence[Compressed], limit: int) -> list[list[int]]:
    loaded, prompts = reading.loaded, [one.prompt for one in part]
    with compress(loaded.model, part[0].policy, tokenizer=loaded.tokenizer) as session:
        if len(part) > 1:
            return greedy_together(session, prompts, limit, reading.rest)
        cache = session.fork(prompts[0].cache)
        first = with_the_rest(loaded.model, cache, prompts[0].first, reading.rest)
        return [greedy(loaded.model, cache, first, limit)]


def _row(task: Task, one: Compressed, tokens: Sequence[int], decode_s: float) -> Row:
    reading, stats = one.reading, one.stats
    text = reading.loaded.tokenizer.decode(tokens, skip_special_tokens=True).strip()
    return {
        "task": task.name,
        "sample": reading.sample.name,
        "spec": one.spec,
        "question": reading.sample.digest,
        "labels": dict(reading.sample.labels),
        "prediction": text,
        "answers": list(reading.sample.answers),
        "score": task.metric(text, reading.sample),
        "tokens": stats.seen,
        "visual_tokens": reading.prompt.visual_tokens,
        "kept_tokens": stats.kept_tokens,
        "kv_bytes": stats.bytes_after,
        "kv_bytes_full": stats.bytes_before,
        **one.seconds,
        "decode_s": decode_s,
    }
