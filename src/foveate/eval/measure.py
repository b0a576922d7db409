"""One sample under many policies: one prefill, then a branch for each."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache

from foveate.backends.hf import Recording, branch, compress, record
from foveate.core.errors import InvalidInput
from foveate.core.policy import Policy
from foveate.core.protocols import reads_column_sums
from foveate.eval.analyses import analysed, kept_places
from foveate.eval.answer import Told, asked, beside, greedy, told
from foveate.eval.contenders import resolved
from foveate.eval.evidence import in_text, tokens_of
from foveate.eval.metrics import rouge_l_to
from foveate.eval.model import Loaded
from foveate.eval.oracle import NAME as ORACLE
from foveate.eval.perplexity import mean_nll, reference_tokens
from foveate.eval.prompt import Prompt, read, shortened
from foveate.eval.sample import Sample, Task

Protocol = Literal["query-aware", "query-agnostic"]
FULL = "full"
Row = dict[str, Any]


class Reading(NamedTuple):
    """A sample whose prompt has been read once.

    ``rest`` are the tokens of the question where it comes after the compression. ``timed`` decodes
    every answer token by token.
    """

    task: Task
    sample: Sample
    prompt: Prompt
    recording: Recording
    policies: Mapping[str, Policy]
    rest: Tensor
    seconds: float
    timed: bool


class Answer(NamedTuple):
    """What one policy makes of a sample."""

    tokens: list[int]
    told: Told
    said: str
    reference: list[int]
    row: Row


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

    A policy that agrees with the full cache's answer is not asked to say it once more, and one that
    does not goes on from where they part; unless ``timed``, or it compresses while decoding.

    The full cache's answer is what the others are compared with: by the tokens of their own greedy
    answers, and by what they think of its tokens, one after the other.

    A text of more tokens than ``longest_prompt`` loses its middle, before the chat template.
    """
    if longest_prompt and not sample.images:
        text = shortened(loaded.tokenizer, sample.text, longest_prompt)
        sample = _cut(sample, text)
    reading = _read(loaded, task, sample, specs, protocol, timed)
    full = _answer(loaded, reading, FULL, None)
    yield full.row
    for spec in specs:
        yield _answer(loaded, reading, spec, full).row


def _read(
    loaded: Loaded, task: Task, sample: Sample, specs: Sequence[str], protocol: Protocol,
    timed: bool,
) -> Reading:  # fmt: skip
    prompt = read(loaded, sample.text, list(sample.images), plain=sample.plain)
    cut = prompt.tokens
    if protocol == "query-agnostic":
        cut = _asked_at(loaded, prompt, sample)
    if not sample.evidence and any(spec.startswith(f"{ORACLE}:") for spec in specs):
        raise InvalidInput(
            f"the samples of {task.name} do not say what shows the answer, so there is no oracle "
            "for them. Leave it out."
        )
    spans = tokens_of(loaded, prompt, sample.images, sample.evidence)
    evidence = tuple(place for where in spans for place in where if place < cut)
    policies = {spec: resolved(spec, evidence) for spec in (FULL, *specs)}
    sums = any(reads_column_sums(policy.score) for policy in policies.values())
    start = _now(loaded)
    recording = record(loaded.model, sums=sums, **_until(prompt, cut))
    seconds = _now(loaded) - start
    rest = prompt.inputs["input_ids"][:, cut:]
    return Reading(task, sample, prompt, recording, policies, rest, seconds, timed)


def _cut(sample: Sample, text: str) -> Sample:
    """The sample with its text shortened; what is left of the question stays the question."""
    asked = sample.question if text.endswith(sample.question) else text
    context = text.removesuffix(asked)
    return replace(sample, context=context, question=asked, between="")


def _asked_at(loaded: Loaded, prompt: Prompt, sample: Sample) -> int:
    """The token of the prompt with which the question begins."""
    question = sample.question.strip()
    if not question:
        raise InvalidInput(
            f"sample {sample.name} has no question after its images and context, so it cannot be "
            "asked query-agnostic. Use query-aware."
        )
    return in_text(loaded, prompt, question, last=True)[0]


def _until(prompt: Prompt, cut: int) -> Mapping[str, Any]:
    """The inputs of the prompt's first tokens: what has a number for every token is cut."""
    if cut == prompt.tokens:
        return prompt.inputs
    return {
        name: value[:, :cut]
        if isinstance(value, Tensor) and value.ndim == 2 and value.shape[1] == prompt.tokens
        else value
        for name, value in prompt.inputs.items()
    }


@torch.no_grad()
def _answer(loaded: Loaded, reading: Reading, spec: str, full: Answer | None) -> Answer:
    model, recording, task = loaded.model, reading.recording, reading.task
    with compress(model, reading.policies[spec]) as session:
        cache = branch(session, recording)
        stats, seconds = session.stats, None
        shown = _shown(reading, cache, full) if reading.timed else {}
        first = asked(model, cache, recording.logits, reading.rest)
        spare = session.fork(cache) if task.reference else None
        quick = full is not None and not reading.timed and not session.policy.when.decodes
        other = cache if quick else session.fork(cache)
        if full is not None and quick:
            thought = told(session, other, first, full.tokens)
            tokens = beside(session, other, thought, full.tokens, task.longest)
        else:
            start = _now(loaded)
            tokens = greedy(model, cache, first, task.longest)
            seconds = _now(loaded) - start
            thought = told(session, other, first, full.tokens if full else tokens)
        reference = _reference(loaded, reading, tokens, full)
        of_it = told(session, spare, first, reference) if spare and reference else None
    said = loaded.tokenizer.decode(tokens, skip_special_tokens=True).strip()
    to = full.said if full else said
    row = {
        "task": task.name,
        "sample": reading.sample.name,
        "spec": spec,
        "prediction": said,
        "answers": list(reading.sample.answers),
        "score": task.metric(said, reading.sample),
        "score_after_first": _after_first(loaded, reading, tokens),
        **_compared(tokens, thought, full),
        "rouge_full": 1.0 if said == to else rouge_l_to(said, to),
        "reference_nll": mean_nll(of_it, reference) if of_it else None,
        "reference_tokens": len(reference),
        "tokens": recording.tokens,
        "visual_tokens": reading.prompt.visual_tokens,
        "kept_tokens": stats.kept_tokens,
        "kv_bytes": stats.bytes_after,
        "kv_bytes_full": stats.bytes_before,
        "prefill_s": round(reading.seconds, 4),
        "compress_s": round(stats.seconds, 4),
        "decode_s_per_token": _each(seconds, len(tokens) - 1),
        **shown,
    }
    return Answer(tokens, thought, said, reference, row)


def _reference(
    loaded: Loaded, reading: Reading, tokens: Sequence[int], full: Answer | None
) -> list[int]:
    """The tokens of the text to compare with; none where a task has no such text."""
    if full is not None:
        return full.reference
    answers = reading.sample.answers
    has_one = reading.task.reference and answers
    return reference_tokens(loaded, answers[0], tokens) if has_one else []


def _shown(reading: Reading, cache: DynamicCache, full: Answer | None) -> Row:
    """What a report draws of the prompt, once, and of what each policy keeps of it."""
    if full is None:
        return {"analyses": analysed(reading.recording)}
    return {"kept_places": kept_places(cache)}


def _after_first(loaded: Loaded, reading: Reading, tokens: Sequence[int]) -> float | None:
    """The score without the first token, which comes from the full prefill; None where it decided.

    It is taken off the prediction, and off the answers that begin with it.
    """
    if not reading.task.divisible:
        return None
    decode = loaded.tokenizer.decode
    first = decode(tokens[:1], skip_special_tokens=True).strip()
    answers = tuple(a[len(first) :].strip() for a in reading.sample.answers if a.startswith(first))
    left = tuple(answer for answer in answers if answer)
    if not left:
        return None
    said = decode(tokens[1:], skip_special_tokens=True).strip()
    task, sample = reading.task, reading.sample
    return task.metric(said, replace(sample, answers=left))


def _compared(tokens: Sequence[int], thought: Told, full: Answer | None) -> Row:
    """How far from the full cache: in tokens, in distributions, in features."""
    reference = full or Answer(list(tokens), thought, "", [], {})
    same = [a == b for a, b in zip(tokens, reference.tokens, strict=False)]
    agreeing = same.index(False) if False in same else len(same)
    whole = list(tokens) == reference.tokens
    p, q = (x.logits.log_softmax(-1) for x in (reference.told, thought))
    wanted = torch.tensor(reference.tokens, device=q.device)[:, None]
    differing = (reference.told.features - thought.features).abs()
    return {
        "agreement": sum(same) / max(len(tokens), len(reference.tokens)),
        "first_divergence": None if whole else agreeing,
        "kl": float((p.exp() * (p - q)).sum(-1).mean()),
        "nll": float(-q.gather(1, wanted).mean()),
        "feature_error": [float(x) for x in differing.mean((1, 2))] if differing.numel() else [],
    }


def _each(seconds: float | None, steps: int) -> float | None:
    return round(seconds / steps, 5) if seconds is not None and steps else None


def _now(loaded: Loaded) -> float:
    if loaded.model.device.type == "cuda":
        torch.cuda.synchronize(loaded.model.device)
    return time.perf_counter()
