"""A sample whose prompt has been read once, for all policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from torch import Tensor

from foveate.backends.hf import Recording, record
from foveate.backends.hf.stats import now
from foveate.core.errors import InvalidInput
from foveate.core.policy import Policy
from foveate.eval.contenders import resolved
from foveate.eval.evidence import in_text, tokens_of
from foveate.eval.model import Loaded
from foveate.eval.oracle import NAME as ORACLE
from foveate.eval.prompt import Prompt, read, shortened
from foveate.eval.sample import Sample, Task

Protocol = Literal["query-aware", "query-agnostic"]
FULL = "full"


class Reading(NamedTuple):
    """A sample whose prompt has been read once.

    ``rest`` are the tokens of the question where it comes after the compression. ``timed`` decodes
    every answer token by token, on its own.
    """

    task: Task
    sample: Sample
    prompt: Prompt
    recording: Recording
    policies: Mapping[str, Policy]
    rest: Tensor
    seconds: float
    timed: bool


def read_once(
    loaded: Loaded,
    task: Task,
    sample: Sample,
    specs: Sequence[str],
    protocol: Protocol,
    *,
    timed: bool,
    longest_prompt: int | None,
) -> Reading:
    """Reads a sample's prompt, as far as it is compressed, with the full cache."""
    if longest_prompt and not sample.images:
        sample = _cut(sample, shortened(loaded.tokenizer, sample.text, longest_prompt))
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
    sums = any(policy.reads_column_sums for policy in policies.values())
    start = now(loaded.model.device)
    recording = record(loaded.model, sums=sums, **_until(prompt, cut))
    seconds = now(loaded.model.device) - start
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
