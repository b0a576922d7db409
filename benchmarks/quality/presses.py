r"""Kept positions and answers beside kvpress, with SmolLM2-135M-Instruct as it was published.

    bash benchmarks/speed/kvpress_env.sh DIR
    python -m benchmarks.quality.presses --kvpress DIR/bin/python [--tokens 2000 4000 8000] \
        [--limit 20]

The model completes one line, or one of eight, of a text of so many tokens (after RULER's
needle-in-a-haystack tasks, which end with how the answer begins); the text is compressed before
that. Both sides keep the same number of tokens. Answers are stored one by one under
benchmarks/runs, and the same command continues. Writes benchmarks/results/presses.md, and
presses.json with every answer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch

import foveate
from benchmarks.output import machine, table, write
from foveate.data import lines
from foveate.defaults import READS
from foveate.hf import branch
from foveate.hf.layer.support import foveate_layers
from foveate.hf.measuring.answer import greedy, with_the_rest
from foveate.hf.probe.questions import ends
from foveate.loading.model import Loaded, load
from foveate.prompts.manual import manual
from foveate.prompts.sample import Sample
from foveate_demo.scenes.words import FIELDS, OWNED, PEOPLE
from foveate_lab.eval.answering.reading import Reading, read_prompt
from foveate_lab.eval.metrics import has_words
from foveate_lab.eval.task_registry import Task

SIDE = Path(__file__).with_name("presses_side.py")
RUNS = Path(__file__).parents[1] / "runs" / "presses.jsonl"
SAME = {
    "knorm": "KnormPress",
    "snapkv:window=64": "SnapKVPress",
    "tova": "TOVAPress",
    "keydiff": "KeyDiffPress",
    "streaming_llm": "StreamingLLMPress",
    "adakv:window=64,kernel=5,pool=avg,floor=0.2,guaranteed=true": "AdaKVPress(SnapKVPress)",
}
"""Policies by which the same tokens are kept, and their presses."""
OURS = ("full", "recommended", "kvzip")
LONGEST = 12
NEEDLES = (1, 8)
WORDS_PER_TOKEN = 0.5  # of the manual, about


def needles(count: int, tokens: int) -> Task:
    """Return lines to complete: one of ``count`` in a text of about so many tokens."""

    def draw(limit: int, seed: int) -> Iterator[Sample]:
        for number in range(limit):
            r = Random(f"presses/{count}/{tokens}/{number}")
            words = int(tokens * WORDS_PER_TOKEN)
            start = r.randrange(len(manual()) - words)
            text, field = list(manual()[start : start + words]), r.choice(OWNED)
            values = {who: FIELDS[field](r) for who in r.sample(PEOPLE, count)}
            for who, value in values.items():
                text.insert(r.randint(0, len(text)), f"\n{who}'s {field.lower()}: {value}\n")
            who = r.choice([*values])
            yield Sample(
                name=str(number),
                question=f"{who}'s {field.lower()}:",
                answers=(values[who],),
                context=f"{' '.join(text)}\n\n",
                plain=True,
            )

    return Task(f"{count} of {tokens}", "A line in a text.", draw, has_words, LONGEST)


def rows(loaded: Loaded, reading: Reading, python: str, model: str) -> Iterator[dict[str, Any]]:
    """Yield a row for every policy, with its press's answer and the share of equal positions."""
    kept = reading.cut // 5
    ids = reading.prompt.inputs["input_ids"][0].tolist()
    request = {
        "model": model,
        "context": ids[: reading.cut],
        "question": ids[reading.cut :],
        "presses": dict.fromkeys(SAME.values(), kept),
        "longest": LONGEST,
        "stop": sorted(ends(loaded.model)),
    }
    answered = subprocess.run(
        [python, str(SIDE)], input=json.dumps(request), capture_output=True, text=True, check=True
    )
    theirs = {row["press"]: row for row in map(json.loads, answered.stdout.splitlines())}
    for spec in (*OURS, *SAME):
        budget = "" if spec == "full" else f"{',' if ':' in spec else ':'}budget={kept}"
        positions, tokens = _ours(loaded, reading, f"{spec}{budget}")
        row: dict[str, object] = {
            "task": reading.task.name,
            "sample": reading.sample.name,
            "spec": spec,
        }
        row |= {"context": reading.cut, **_judged(loaded, reading, "ours", tokens)}
        if spec in SAME:
            press = theirs[SAME[spec]]
            row |= _judged(loaded, reading, "theirs", press["tokens"])
            row["equal"] = _equal(positions, press["kept"])
        yield row


@torch.no_grad()
def _ours(loaded: Loaded, reading: Reading, spec: str) -> tuple[list[list[set[int]]], list[int]]:
    """Return the positions that each layer and head keeps of the context, and the answer."""
    model, policy = loaded.model, reading.policy(spec)
    recording, _ = reading.recorded_for(policy)
    with foveate.compress(model, policy, tokenizer=loaded.tokenizer) as session:
        cache = branch(session, recording)
        kept = [
            [{*columns.tolist()} - {-1} for columns in layer.pairs.padded().columns[0]]
            for layer in foveate_layers(cache)
        ]
        first = with_the_rest(model, cache, recording.logits, reading.rest)
        return kept, greedy(model, cache, first, LONGEST)


def _equal(ours: Sequence[Sequence[set[int]]], theirs: Sequence[Sequence[Sequence[int]]]) -> float:
    """Return the share of the positions of either side that both keep."""
    pairs = [
        (mine, {*other})
        for layer, their_layer in zip(ours, theirs, strict=True)
        for mine, other in zip(layer, their_layer, strict=True)
    ]
    return sum(len(a & b) for a, b in pairs) / sum(len(a | b) for a, b in pairs)


def _judged(loaded: Loaded, reading: Reading, side: str, tokens: Sequence[int]) -> dict[str, Any]:
    text = loaded.tokenizer.decode(tokens, skip_special_tokens=True).strip()
    return {side: text, f"{side}_right": has_words(text, reading.sample)}


def page(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a table per task: equal positions, and right answers on both sides."""
    text = []
    for task in dict.fromkeys(row["task"] for row in found):
        mine = [row for row in found if row["task"] == task]
        cells = []
        for spec in (*OURS, *SAME):
            of_spec = [row for row in mine if row["spec"] == spec]
            both = [row for row in of_spec if "theirs" in row]
            cells.append([f"`{spec}`", f"{mean(row['ours_right'] for row in of_spec):.2f}"])
            cells[-1] += (
                [
                    f"{mean(row['theirs_right'] for row in both):.2f}",
                    f"{mean(row['ours'] == row['theirs'] for row in both):.2f}",
                    f"{mean(row['equal'] for row in both):.4f}",
                ]
                if both
                else ["", "", ""]
            )
        heads = ["policy", "right", "right in kvpress", "same answers", "equal positions"]
        count = len({row["sample"] for row in mine})
        questions = f"{count} question{'s' * (count != 1)}"
        text += [f"## Line {task} tokens: {questions}", "", *table(heads, cells), ""]
    return text


def main() -> None:
    """Answer what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kvpress", required=True, help="Python of kvpress's environment")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2000, 4000, 8000])
    parser.add_argument("--limit", type=int, default=20, help="questions of each task")
    parser.add_argument("--runs", type=Path, default=RUNS)
    a = parser.parse_args()
    torch.set_num_threads(1)
    a.runs.parent.mkdir(parents=True, exist_ok=True)
    found = list(lines.read(a.runs)) if a.runs.exists() else []
    done = {(row["task"], row["sample"]) for row in found}
    loaded = load(READS)
    with TemporaryDirectory() as folder:
        loaded.model.save_pretrained(folder)
        for number in range(a.limit):
            for task in (needles(count, tokens) for tokens in a.tokens for count in NEEDLES):
                sample = [*task.samples(number + 1, 0)][number]
                if (task.name, sample.name) in done:
                    continue
                reading = read_prompt(
                    loaded, task, sample, "query-agnostic", timed=False, longest_prompt=None
                )
                found += rows(loaded, reading, a.kvpress, folder)
                lines.write(a.runs, found)
                print(f"line {task.name}: question {number + 1}", flush=True)
    text = [
        "# Beside kvpress",
        "",
        "SmolLM2-135M-Instruct completes a line of a text, of which 20 % are kept: it is "
        "compressed before the model knows which line. "
        "Equal positions: kept by both, as a share of those kept by either.",
        "",
        *page(found),
    ]
    write("presses", "\n".join(text), {**machine(), "answers": found})


if __name__ == "__main__":
    main()
