"""Right or wrong, for many policies on one question, with as little decoding as possible.

`foveate eval` records much more of an answer. A leaderboard needs only one bit, the bytes stored,
and the cost of compression. So a policy reads the rest of the prompt and the full cache's complete
answer in one pass. If it predicts every token, its answer would be the same. If not, its first
different token usually shows that it is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from time import process_time
from typing import Any

import torch

from foveate.errors import FoveateError
from foveate.hf import Recording, Session, branch, compress
from foveate.hf.measuring.answer import greedy, with_the_rest
from foveate.hf.model.internals import CACHE
from foveate.hf.probe.questions import ends
from foveate.loading.model import Loaded
from foveate.policies.policy import Policy
from foveate.policies.pruning import Prune
from foveate.prompts.sample import Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.measure import read_as
from foveate_lab.eval.answering.reading import FULL, Reading, read_prompt
from foveate_lab.eval.metrics import exact
from foveate_lab.eval.results import Results
from foveate_lab.eval.task_registry import Task

Row = dict[str, Any]


@dataclass
class Question:
    """Prompt with the full cache's answer.

    ``prefill_s``: CPU seconds of prefills, by column sums and pruning.
    """

    reading: Reading
    prefill_s: dict[tuple[bool, Prune | None], float] = field(default_factory=dict)
    full: list[int] = field(default_factory=list)

    def recording(self, policy: Policy) -> Recording:
        """Return the recorded prefill, timed the first time."""
        start = process_time()
        found = self.reading.recorded_for(policy).recording
        kind = policy.reads_column_sums, policy.prune
        self.prefill_s.setdefault(kind, process_time() - start)
        return found


def rows(
    loaded: Loaded, task: Task, sample: Sample, specs: Sequence[str], protocol: Protocol
) -> Iterator[Row]:
    """Yield a row for the full cache and for each spec; a refused spec has an ``error``."""
    reading = read_prompt(loaded, task, sample, protocol, timed=False, longest_prompt=None)
    question = Question(reading)
    yield _row(question, FULL)
    for spec in sorted(specs, key=lambda spec: read_as(reading, spec)):
        yield _row(question, spec)


def ask_missing(
    results: Results,
    loaded: Loaded,
    task: Task,
    sample: Sample,
    specs: Sequence[str],
    protocol: Protocol,
    **more: Any,
) -> None:
    """Answer a question under the specs that have no row yet; rows get ``more`` columns."""
    missing = [s for s in dict.fromkeys(specs) if (task.name, sample.name, s) not in results]
    for row in rows(loaded, task, sample, missing, protocol) if missing else ():
        results.add({**row, **more})


def _policy(reading: Reading, spec: str) -> tuple[Policy | FoveateError, bool]:
    """Return the policy, or the error that refuses it, and if it reads column sums."""
    try:
        policy = reading.policy(spec)
    except FoveateError as error:
        return error, False
    return policy, policy.reads_column_sums


@torch.no_grad()
def _row(question: Question, spec: str) -> Row:
    reading = question.reading
    named = {"task": reading.task.name, "sample": reading.sample.name, "spec": spec}
    policy, sums = _policy(reading, spec)
    if isinstance(policy, FoveateError):
        return {**named, "error": str(policy)}
    try:
        recording = question.recording(policy)
        model, tokenizer = reading.loaded.model, reading.loaded.tokenizer
        with compress(model, policy, tokenizer=tokenizer) as session:
            start = process_time()
            cache = branch(session, recording)
            seconds = process_time() - start
            stats = session.stats
            right = _right(question, session, recording, cache)
    except FoveateError as error:
        return {**named, "error": str(error)}
    prefill_s = question.prefill_s
    plain = prefill_s.get((False, policy.prune), prefill_s[sums, policy.prune])
    return {
        **named,
        "right": right,
        "tokens": recording.tokens,
        "kv_bytes": stats.bytes_after,
        "kv_bytes_full": stats.bytes_before,
        "compress_s": round(seconds, 4),
        "sums_s": round(prefill_s[sums, policy.prune] - plain, 4),
        "prefill_s": round(plain, 4),
    }


def _right(question: Question, session: Session, recording: Recording, cache: Any) -> float:
    """Return 1 if the greedy answer is exactly right."""
    reading = question.reading
    if question.full and not session.policy.when.decodes:
        fed = torch.cat([reading.rest, torch.tensor([question.full[:-1]])], dim=1)
        logits = session.model(input_ids=fed, **{CACHE: cache}).logits[0]
        ahead = torch.cat([recording.logits, logits])[-len(question.full) :]
        beginning = _common_start(ahead.argmax(-1).tolist(), question.full)
        ended = beginning == question.full or beginning[-1] in ends(session.model)
        if ended or not _may_be_right(reading, beginning):
            return _score(reading, beginning)
        cache = branch(session, recording)
    first = with_the_rest(session.model, cache, recording.logits, reading.rest)

    def may_continue(tokens: Sequence[int]) -> bool:
        return not question.full or _may_be_right(reading, tokens)

    tokens = greedy(session.model, cache, first, reading.task.longest, may_continue)
    question.full = question.full or tokens
    return _score(reading, tokens)


def _common_start(likeliest: Sequence[int], full: Sequence[int]) -> list[int]:
    """Return the full cache's answer up to the first different token, followed by that token."""
    for index, (mine, theirs) in enumerate(zip(likeliest, full, strict=True)):
        if mine != theirs:
            return [*full[:index], mine]
    return list(full)


def _may_be_right(reading: Reading, tokens: Sequence[int]) -> bool:
    """Check if an answer that begins with these tokens can be right."""
    text = _text(reading, tokens)
    return any(answer.strip().startswith(text) for answer in reading.sample.answers)


def _score(reading: Reading, tokens: Sequence[int]) -> float:
    return exact(_text(reading, tokens), reading.sample)


def _text(reading: Reading, tokens: Sequence[int]) -> str:
    found: str = reading.loaded.tokenizer.decode(tokens, skip_special_tokens=True)
    return found.strip()
