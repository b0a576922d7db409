"""All methods on the same questions, in both protocols: the leaderboard of `quality.py`.

Answers are stored one by one under benchmarks/runs. A later run continues, and with more questions,
budgets or methods answers only what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import foveate_lab.eval.tasks  # noqa: F401  which registers the tasks
from benchmarks.quality.asking import ask_missing
from benchmarks.quality.profiles_made import FILTERS, KVZAP, PROFILES, STATISTICS, TRIATTENTION
from foveate.data import lines
from foveate.loading.hardware import versions_of_results
from foveate.loading.model import load
from foveate_lab.defaults import Protocol
from foveate_lab.eval.contenders import contenders
from foveate_lab.eval.results import ROWS, Results
from foveate_lab.eval.task_registry import TASKS

HEADS = f"profile={PROFILES}/headkv.json"
BUDGETS = ("40%", "20%", "10%", "5%")
TASKS_ASKED = ("three_documents", "chart")
LEFT_OUT = {"chart": ("5%",)}  # 5 tokens, with which even the oracle answers nothing
METHODS = (  # prompts are short: windows are a quarter of the budget, or fit 5 %
    "oracle",
    f"recommended:profile={PROFILES}/recommended.safetensors",
    f"keydiff(recent=0.25)+headkv.budget({HEADS})",
    f"headkv:{HEADS},window=0.25",
    f"sparsemm:profile={PROFILES}/sparsemm.json,window=0.25",
    f"policy:score=recency(),budget=best_heads(amount=20%,{HEADS},of=headkv),"
    "select=top_k(sinks=4,recent=0.25)",
    f"q_filters:profile={FILTERS},recent=0.25",
    f"expected_attention:profile={STATISTICS}",
    f"kvzap:profile={KVZAP}",
    f"triattention:profile={TRIATTENTION},recent=0.25",
    "recommended",
    "kvzip",
    "mixkv(window=0.25)+adakv",
    "mixkv:window=0.25",
    "prefixkv:when=after_prefill",
    "csp",
    "david",
    "lookm",
    "adakv:window=0.25",
    "aircache",
    "bacon:window=0.25",
    "cam",
    "chunkkv:length=4,window=0.25",
    "compactor:sinks=1",
    "criticalkv:window=0.25",
    "criticalkv(window=0.25)+adakv",
    "cur",
    "divprune",
    "elastic_cache",
    "expected_attention",
    "fastv",
    "finch:window=0.25",
    "h2o",
    "infinipotv",
    "keydiff:recent=0.25",
    "keyformer",
    "knorm:recent=0.25",
    "lagkv:lag=16",
    "leverage:recent=2",
    "meda",
    "nacl",
    "non_causal_attention:recent=2",
    "pyramiddrop",
    "pyramidkv:window=0.25",
    "random:recent=0.25",
    "rkv:window=0.25",
    "roco",
    "simlayerkv",
    "snapkv:window=0.25",
    "streaming_llm",
    "tgv_kv",
    "think:window=4",
    "tova",
    "vase:window=0.25,sinks=1",
    "vl_cache",
    "vnorm:recent=0.25",
)


def specs_of(task: str, methods: Sequence[str], budgets: Sequence[str]) -> list[str]:
    """Return the specs of a task."""
    return contenders(methods, [b for b in budgets if b not in LEFT_OUT.get(task, ())])


def answer_missing(runs: Path, protocol: Protocol, limit: int, methods: Sequence[str]) -> None:
    """Answer what is missing of the first questions of each task, question by question."""
    with ExitStack() as stack:
        found = {
            task: stack.enter_context(results_of(runs / protocol / task, task, protocol))
            for task in TASKS_ASKED
        }
        drawn = {task: list(TASKS[task].samples(limit, 0)) for task in TASKS_ASKED}
        loaded = load("demo")
        for index in range(limit):
            for task, results in found.items():
                sample, specs = drawn[task][index], specs_of(task, methods, BUDGETS)
                ask_missing(results, loaded, TASKS[task], sample, specs, protocol)
            print(f"{protocol}: {index + 1} of {limit} questions of each task", flush=True)


def forget(runs: Path, again: Sequence[str]) -> None:
    """Delete answers under specs that begin so, because a profile or code has changed."""
    for path in runs.glob(f"*/*/{ROWS}"):
        kept = [row for row in lines.read(path) if not row["spec"].startswith(tuple(again))]
        lines.write(path, kept)


def results_of(folder: Path, task: str, protocol: Protocol) -> Results:
    """Open the answers of one task for continuation."""
    configuration = {
        "model": "demo",
        "tasks": [task],
        "protocol": protocol,
        "seed": 0,
        "versions": versions_of_results(),
    }
    return Results(folder, configuration, resume=True)
