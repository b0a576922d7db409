"""One sample under many policies: one prefill, then a branch for each, and the branches go on
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from transformers import DynamicCache

from foveate.backends.hf import Stats, branch, compress, joinable, together
from foveate.backends.hf.stats import now
from foveate.core.policy import Policy
from foveate.eval.analyses import analysed, kept_places
from foveate.eval.answer import Told, asked, greedy, told
from foveate.eval.model import Loaded
from foveate.eval.perplexity import reference_tokens
from foveate.eval.reading import FULL, Protocol, Reading, read_once
from foveate.eval.row import Answer, Row, row
from foveate.eval.sample import Sample, Task

ROWS, BYTES = 32, 2**29  # of branches that go on together; the bytes of their pairs


class Branch(NamedTuple):
    """A sample's cache as one policy compressed it. ``shown`` is what a report draws of it."""

    spec: str
    policy: Policy
    cache: DynamicCache
    stats: Stats
    shown: Row


def measured(
    loaded: Loaded,
    task: Task,
    sample: Sample,
    specs: Sequence[str],
    protocol: Protocol,
    *,
    timed: bool = False,
    longest_prompt: int | None = None,
) -> Iterator[Row]:
    """One row for the full cache (:data:`FULL`) and for each spec.

    Branches go on in one batch where they can, and a policy that agrees with all of the full
    cache's answer is not asked to say it once more; unless ``timed``.

    The full cache's answer is what the others are compared with: by the tokens of their own greedy
    answers, and by what they think of its tokens, one after the other.

    A text of more tokens than ``longest_prompt`` loses its middle, before the chat template.
    """
    reading = read_once(loaded, task, sample, specs, protocol, timed=timed,
                        longest_prompt=longest_prompt)  # fmt: skip
    (full,) = _answers(loaded, reading, [_branch(loaded, reading, FULL)], None)
    yield full.row
    for batch in _batches(loaded, reading, specs):
        for answer in _answers(loaded, reading, batch, full):
            yield answer.row


def _branch(loaded: Loaded, reading: Reading, spec: str) -> Branch:
    policy = reading.policies[spec]
    with compress(loaded.model, policy) as session:
        cache = branch(session, reading.recording)
    shown: Row = {}
    if reading.timed:
        is_full = spec == FULL
        shown = ({"analyses": analysed(reading.recording)} if is_full
                 else {"kept_places": kept_places(cache)})  # fmt: skip
    return Branch(spec, policy, cache, session.stats, shown)


def _batches(loaded: Loaded, reading: Reading, specs: Sequence[str]) -> Iterator[list[Branch]]:
    """The branches, in order, in batches that go on together."""
    batch: list[Branch] = []
    for spec in specs:
        one = _branch(loaded, reading, spec)
        if batch and not _fits(reading, batch, one):
            yield batch
            batch = []
        batch.append(one)
    if batch:
        yield batch


def _fits(reading: Reading, batch: Sequence[Branch], one: Branch) -> bool:
    if reading.timed or len(batch) == ROWS or not joinable(batch[0].policy, one.policy):
        return False
    return sum(each.stats.bytes_after for each in (*batch, one)) <= BYTES


@torch.no_grad()
def _answers(
    loaded: Loaded, reading: Reading, batch: Sequence[Branch], full: Answer | None
) -> list[Answer]:
    """What the branches make of the sample, all of them at once."""
    recording, task, seconds = reading.recording, reading.task, None
    with compress(loaded.model, batch[0].policy) as session:
        cache = batch[0].cache
        if len(batch) > 1:
            cache = together(session, recording, [one.cache for one in batch])
        first = recording.logits.expand(len(batch), -1)
        first = asked(session.model, cache, first, reading.rest.expand(len(batch), -1))
        listening, spare = session.fork(cache), session.fork(cache) if task.reference else None
        thoughts = None if full is None else told(session, listening, first, full.tokens)
        if full is not None and thoughts is not None and not reading.timed:
            tokens = _where_they_differ(loaded, cache, first, thoughts, full.tokens, task.longest)
        else:
            start = now(loaded.model.device)
            tokens = greedy(session.model, cache, first, task.longest)
            seconds = now(loaded.model.device) - start
        if thoughts is None:
            thoughts = told(session, listening, first, tokens[0])
        reference = _reference(loaded, reading, tokens[0], full)
        of_it: list[Told] | list[None] = [None] * len(batch)
        if spare is not None and reference:
            of_it = told(session, spare, first, reference)
    return [
        row(loaded, reading, one.spec, said, thought, about, reference, full, one.stats, seconds,
            one.shown)
        for one, said, thought, about in zip(batch, tokens, thoughts, of_it, strict=True)
    ]  # fmt: skip


def _where_they_differ(
    loaded: Loaded, cache: DynamicCache, first: torch.Tensor, thoughts: Sequence[Told],
    answer: Sequence[int], longest: int,
) -> list[list[int]]:  # fmt: skip
    """Every branch's greedy answer; one that thought of each token of ``answer`` says that."""
    agree = [thought.logits.argmax(-1).tolist() == list(answer) for thought in thoughts]
    tokens = [list(answer) for _ in thoughts]
    others = torch.tensor([i for i, same in enumerate(agree) if not same], dtype=torch.long)
    if len(others):
        if len(others) < len(agree):
            cache.batch_select_indices(others)
        said = greedy(loaded.model, cache, first[others], longest)
        for i, one in zip(others.tolist(), said, strict=True):
            tokens[i] = one
    return tokens


def _reference(
    loaded: Loaded, reading: Reading, tokens: Sequence[int], full: Answer | None
) -> list[int]:
    """The tokens of the text to compare with; none where a task has no such text."""
    if full is not None:
        return full.reference
    answers = reading.sample.answers
    has_one = reading.task.reference and answers
    return reference_tokens(loaded, answers[0], tokens) if has_one else []
