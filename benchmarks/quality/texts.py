"""The recommended recipe and other methods on text, with SmolLM2-135M-Instruct.

    python -m benchmarks.quality.texts [--limits 40 40 10] [--protocols query-agnostic query-aware]

Of the questions that the full cache answers right, it counts those that each method answers with
the same tokens: the answer's tokens are fed, and each must be the most likely. Continues an earlier
run, and writes benchmarks/results/texts.md and .json, with 95 % intervals (bootstrap over
questions). The profile of `recommended` was calibrated by
`foveate calibrate recommended --model smollm2` on other prompts, with templates other than that of
`text_line`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch

import foveate
from benchmarks.output import RESULTS, write
from benchmarks.quality.recipe import Share, shares, table
from foveate.defaults import READS
from foveate.hf import branch
from foveate.hf.measuring.answer import greedy, with_the_rest
from foveate.hf.model.internals import CACHE
from foveate.loading.model import Loaded, load
from foveate.policies.policy import Policy
from foveate.prompts.sample import Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.reading import FULL, Reading, read_prompt
from foveate_lab.eval.contenders import contenders
from foveate_lab.eval.metrics import has_words
from foveate_lab.eval.task_registry import TASKS, Task
from foveate_lab.eval.tasks.text_needle import samples

RUNS = Path(__file__).parents[1] / "runs" / "texts"
PROFILE = "benchmarks/profiles/recommended_smollm2.safetensors"
METHODS = (
    f"recommended:profile={PROFILE}",
    "recommended",
    "keydiff:recent=0.25",
    "kvzip",
    "snapkv:window=0.25",
    "expected_attention",
    "mixkv:window=0.25",
    "h2o",
    "streaming_llm",
    "tova",
)
BUDGETS = ("20%", "10%", "5%")
SEED = 2026
LINES = {"text_line": 400, "text_line_long": 1300}
"""Words around the line to complete."""


def lines(name: str) -> Task:
    """Return a needle task without a chat: the text before the needle's colon is repeated at the
    end, and its value is to be completed.
    """

    def draw(count: int, seed: int) -> Iterator[Sample]:
        for sample in samples(name, LINES[name])(count, seed):
            owned = sample.question.removeprefix("What is ").removesuffix("?")
            yield replace(sample, question=f"{owned}:", plain=True)

    return Task(name, f"A line in {LINES[name]:,} words, begun again.", draw, has_words, longest=12)


ASKED = {"text_needle": TASKS["text_needle"], **{name: lines(name) for name in LINES}}


def right_answer(reading: Reading, loaded: Loaded) -> list[int]:
    """Return the full cache's answer up to the token that makes it right; empty if it is wrong."""
    recording = reading.recorded(sums=True).recording
    with foveate.compress(loaded.model, FULL) as session, torch.no_grad():
        cache = branch(session, recording)
        first = with_the_rest(loaded.model, cache, recording.logits, reading.rest)
        tokens = greedy(loaded.model, cache, first, reading.task.longest)
    for count in range(1, len(tokens) + 1):
        text = loaded.tokenizer.decode(tokens[:count], skip_special_tokens=True)
        if has_words(text, reading.sample):
            return tokens[:count]
    return []


def gives(reading: Reading, loaded: Loaded, policy: Policy, right: Sequence[int]) -> bool:
    """Check if each of the tokens is the most likely under the policy, too."""
    recording = reading.recorded(sums=True).recording
    fed = torch.tensor([right[:-1]], dtype=torch.long)
    fed = torch.cat([reading.rest, fed], dim=1)
    with foveate.compress(loaded.model, policy) as session, torch.no_grad():
        cache = branch(session, recording)
        logits = recording.logits
        if fed.shape[1]:
            after: Any = loaded.model(input_ids=fed, **{CACHE: cache}).logits[0]
            logits = after if reading.rest.shape[1] else torch.cat([logits, after])
    return bool(logits[-len(right) :].argmax(-1).tolist() == right)


def rows(
    loaded: Loaded, task: Task, sample: Sample, protocol: Protocol, specs: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield a row for the full cache, and one for each spec if that answer is right."""
    reading = read_prompt(loaded, task, sample, protocol, timed=False, longest_prompt=None)
    same = {"task": task.name, "sample": sample.name, "tokens": reading.prompt.tokens}
    right = right_answer(reading, loaded)
    yield {**same, "spec": FULL, "score": float(bool(right))}
    for spec in specs if right else ():
        score = float(gives(reading, loaded, reading.policy(spec), right))
        yield {**same, "spec": spec, "score": score}


def answer_missing(
    loaded: Loaded, name: str, protocol: Protocol, limit: int
) -> list[dict[str, Any]]:
    """Return all rows of a task; stored questions are not answered again."""
    path = RUNS / protocol / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {}
    if path.exists():
        questions = (json.loads(line) for line in path.read_text().splitlines())
        done = {question[0]["sample"]: question for question in questions}
    specs = contenders(METHODS, BUDGETS)
    for sample in ASKED[name].samples(limit, SEED):
        if sample.name not in done:
            done[sample.name] = list(rows(loaded, ASKED[name], sample, protocol, specs))
            with path.open("a") as file:
                file.write(json.dumps(done[sample.name]) + "\n")
    return [row for question in done.values() for row in question]


def of_right(found: Sequence[Mapping[str, Any]]) -> dict[str, Share]:
    """Return each spec's share of the full cache's right answers."""
    right = {row["sample"] for row in found if row["spec"] == FULL and row["score"]}
    known = [row for row in found if row["sample"] in right]
    return shares(known, [known[0]["task"]]) if known else {}


def section(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a task's table, and its size."""
    full = [row for row in found if row["spec"] == FULL]
    right, name = sum(int(row["score"]) for row in full), full[0]["task"]
    tokens = [row["tokens"] for row in full]
    summary = f"{min(tokens)} to {max(tokens)} tokens; the full cache is right in {right} of "
    return [*table(name, of_right(found)), f"{summary}{len(full)} questions.", ""]


def main() -> None:
    """Answer the questions, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--limits",
        nargs=len(ASKED),
        type=int,
        default=[40, 40, 10],
        help=f"questions of {', '.join(ASKED)}",
    )
    parser.add_argument(
        "--protocols", nargs="+", choices=get_args(Protocol), default=get_args(Protocol)
    )
    a = parser.parse_args()
    torch.set_num_threads(1)
    path = RESULTS / "texts.json"
    data = json.loads(path.read_text()) if path.exists() else {}
    loaded = load(READS)
    for protocol in a.protocols:
        for name, limit in zip(ASKED, a.limits, strict=True):
            if limit:
                found = answer_missing(loaded, name, protocol, limit)
                data.setdefault(protocol, {})[name] = section(found)
    head = [
        "# The recommended recipe on text",
        "",
        "SmolLM2-135M-Instruct. Of the questions that the full cache answers right, the share "
        "whose answer each method gives too, token for token, with 95 % intervals (bootstrap over "
        "questions). `text_needle` asks in a chat for a line among 90 words of Python's manual; "
        "`text_line` and `text_line_long` begin such a line again among 400 and 1,300 words.",
        "",
    ]
    for protocol, of_task in data.items():
        head += [f"## {protocol.capitalize()}", ""]
        head += [line for task_lines in of_task.values() for line in task_lines]
    write("texts", "\n".join(head), data)


if __name__ == "__main__":
    main()
