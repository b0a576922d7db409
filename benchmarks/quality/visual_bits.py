"""Agreement and bytes with visual tokens in few bits, and text in more.

    python -m benchmarks.quality.visual_bits [--limit 3]

The demo model answers questions about three documents each. Every layout is fed the full cache's
answer in one pass: it agrees if each token is the most likely. Writes
benchmarks/results/visual_bits.md and .json.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

import foveate_lab.eval.tasks  # noqa: F401  which registers the tasks
from benchmarks.output import write
from foveate.hf import branch, compress
from foveate.hf.measuring.answer import greedy, with_the_rest
from foveate.hf.model.internals import CACHE
from foveate.loading.model import Loaded, load
from foveate_lab.eval.answering.reading import FULL, Reading, read_prompt
from foveate_lab.eval.task_registry import TASKS

TASK = "three_documents"
SPECS = (
    FULL,
    "kivi:bits=8",
    "kivi:bits=4",
    "kivi:bits=2",
    *(f"kivi:of=visual,bits={bits}" for bits in (4, 2, 1)),
    *(f"kivi:of=visual,bits={bits},values=token" for bits in (4, 2, 1)),
    *(f"kivi:of=visual,bits={bits},text=8,residual=32" for bits in (4, 2, 1)),
    "kivi:of=visual,bits=2,group=8",
    "kivi:of=visual,bits=1,group=8",
)


@torch.no_grad()
def agreed(reading: Reading, spec: str, full: list[int]) -> dict[str, Any]:
    """Return one layout's row of one question."""
    recording = reading.recorded(sums=False).recording
    with compress(reading.loaded.model, reading.policy(spec)) as session:
        cache = branch(session, recording)
        stats = session.stats
        fed = torch.cat([reading.rest, torch.tensor([full[:-1]])], dim=1)
        logits = session.model(input_ids=fed, **{CACHE: cache}).logits[0]
    ahead = torch.cat([recording.logits, logits])[-len(full) :].argmax(-1).tolist()
    tokens = [mine == theirs for mine, theirs in zip(ahead, full, strict=True)]
    return {
        "spec": spec,
        "same": all(tokens),
        "tokens": sum(tokens) / len(tokens),
        "share": stats.bytes_after / stats.bytes_before,
    }


def rows(loaded: Loaded, limit: int) -> Iterator[dict[str, Any]]:
    """Yield rows of every question and layout."""
    task = TASKS[TASK]
    for sample in task.samples(limit, 0):
        reading = read_prompt(loaded, task, sample, "query-aware", timed=False, longest_prompt=None)
        recording = reading.recorded(sums=False).recording
        with torch.no_grad(), compress(loaded.model, "full") as session:
            cache = branch(session, recording)
            first = with_the_rest(session.model, cache, recording.logits, reading.rest)
            full = greedy(session.model, cache, first, task.longest)
        for spec in SPECS:
            yield agreed(reading, spec, full)


def table(found: list[dict[str, Any]]) -> str:
    """Return a table of means over the questions."""
    of_spec = defaultdict(list)
    for row in found:
        of_spec[row["spec"]].append(row)
    lines = ["| policy | KV bytes, % of full | same answer | same token |", "|---|---|---|---|"]
    for spec, spec_rows in of_spec.items():
        share, same, tokens = (
            sum(row[name] for row in spec_rows) / len(spec_rows)
            for name in ("share", "same", "tokens")
        )
        lines.append(f"| `{spec}` | {share:.1%} | {same:.0%} | {tokens:.1%} |")
    return "\n".join(lines)


def main() -> None:
    """Answer the questions, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=int, default=3)
    limit = parser.parse_args().limit
    torch.set_num_threads(1)
    loaded = load("demo")
    found = []
    for row in rows(loaded, limit):
        found.append(row)
        print(row, flush=True)
    head = (
        f"# Few bits for visual tokens\n\nThe demo model, float32, {limit} questions about three "
        "documents each, nothing evicted. Bytes are those held after the prefill, codes, scales "
        "and columns, over those of the full cache, whose numbers have 32 bits here. An answer is "
        "the same if each of its tokens is the likeliest after the full cache's before it.\n\n"
    )
    write("visual_bits", head + table(found), found)


if __name__ == "__main__":
    main()
