r"""Board of the best methods and the five papers' methods, on many questions of four hard tasks.

    python -m benchmarks.quality.board [--limit 100] [--budget 10%] [--protocols ...] \
        [--methods SPEC ...]
    python -m benchmarks.quality.board --merge FILE...     results of other machines

One bit per question and method is written to benchmarks/results/board.json after every question,
and board.md beside it. The same command continues the last run, on any machine. Answers of other
weights are neither continued nor merged. Another release of Foveate adds rows of its own, and stops
if the full cache answers otherwise than on the board.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

import foveate_lab.eval.tasks  # noqa: F401  which registers the tasks
from benchmarks.output import RESULTS, demo
from benchmarks.quality import board_page
from benchmarks.quality.asking import rows
from benchmarks.quality.profiles_made import GATES, KVZAP, PROFILES, TRIATTENTION, make_missing
from benchmarks.quality.same_questions import HEADS
from foveate.data import files
from foveate.hf.saving.identity import ModelIdentity
from foveate.loading.hardware import versions_of_results
from foveate.loading.model import load
from foveate.prompts.sample import Sample
from foveate_lab.bench import processor
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.contenders import contenders
from foveate_lab.eval.task_registry import TASKS

FILE = RESULTS / "board.json"
TASKS_ASKED = ("eight_people", "sixteen_people", "chart", "mixed")
METHODS = (  # methods of the papers, the best of the leaderboard, then references
    "mixkv:window=0.25",
    "prefixkv:when=after_prefill",
    "csp",
    "david",
    "lookm",
    f"recommended:profile={PROFILES}/recommended.safetensors",
    "recommended",
    "kvzip",
    f"kvzap:profile={KVZAP}",
    f"fast_kvzip:profile={GATES}",
    f"triattention:profile={TRIATTENTION},recent=0.25",
    f"keydiff(recent=0.25)+headkv.budget({HEADS})",
    f"headkv:{HEADS},window=0.25",
    f"sparsemm:profile={PROFILES}/sparsemm.json,window=0.25",
    f"policy:score=recency(),budget=best_heads(amount=20%,{HEADS},of=headkv),"
    "select=top_k(sinks=4,recent=0.25)",
    "mixkv(window=0.25)+adakv",
    "criticalkv(window=0.25)+adakv",
    "keydiff:recent=0.25",
    "rkv:window=0.25",
    "snapkv:window=0.25",
    "star_kv:window=0.25",
    "oracle",
    "random:recent=0.25",
)
RIGHT, WRONG, REFUSED = "1", "0", "x"
TIMED = 12  # questions whose bytes and times are recorded
Board = dict[str, Any]


def main() -> None:
    """Answer questions or merge files, and write the board."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--limit", type=int, default=100, help="questions of each task")
    parser.add_argument("--budget", default="10%")
    parser.add_argument("--protocols", nargs="+", default=get_args(Protocol))
    parser.add_argument("--tasks", nargs="+", default=TASKS_ASKED)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--file", type=Path, default=FILE)
    a = parser.parse_args()
    board = json.loads(a.file.read_text()) if a.file.exists() else None
    if a.merge:
        for path in a.merge:
            board = merged(board, json.loads(path.read_text()), str(path))
        _write(a.file, board or {})
        return
    make_missing(methods=a.methods)
    loaded = load("demo")
    board = merged(board, _empty_board(loaded, a.budget), str(a.file))
    drawn = {task: TASKS[task].samples(a.limit, 0) for task in a.tasks}
    for index in range(a.limit):
        samples = {task: next(of_task) for task, of_task in drawn.items()}
        for protocol in a.protocols:
            for task, sample in samples.items():
                answer_question(board, loaded, protocol, task, sample, a.methods, index)
                files.write(a.file, json.dumps(board, indent=1) + "\n")
        _write(a.file, board)
        print(f"{index + 1} of {a.limit} questions of each task", flush=True)


def _write(path: Path, board: Board) -> None:
    """Write the answers, and the page of their tables."""
    files.write(path, json.dumps(board, indent=1) + "\n")
    files.write(path.with_suffix(".md"), board_page.text(board) + "\n")


def _empty_board(loaded: Any, budget: str) -> Board:
    """Return an empty board with the settings that its answers depend on."""
    settings = {
        "weights": ModelIdentity.of(loaded.model).weights,
        "demo": demo(),
        "budget": budget,
        **versions_of_results(),
    }
    return {
        "made": settings,
        "machine": processor(torch.device("cpu")),
        "seconds": 0.0,
        "asked": {},
    }


def merged(mine: Board | None, theirs: Board, name: str) -> Board:
    """Merge the answers of two boards; refuse boards with different settings."""
    if mine is None:
        return theirs
    if differing := {
        key: (mine["made"].get(key), theirs["made"].get(key))
        for key in {*mine["made"], *theirs["made"]} - {"foveate"}
        if mine["made"].get(key) != theirs["made"].get(key)
    }:
        raise SystemExit(f"{name} was made otherwise (ours, theirs): {differing}.")
    new = False
    origin = _origin(mine, theirs["made"]["foveate"], theirs["machine"])
    for where, found in _cells(theirs):
        named = found.get("origin", origin)
        cell = _cell(mine, *where, named)
        if len(found["right"]) > len(cell["right"]) and cell.get("origin") == named:
            cell |= found
            new = True
    mine["seconds"] += theirs["seconds"] if new else 0.0
    return mine


def _cells(board: Board) -> Iterator[tuple[tuple[str, str, str], Board]]:
    for protocol, tasks in board["asked"].items():
        for task, methods in tasks.items():
            for method, cell in methods.items():
                yield (protocol, task, method), cell


def _cell(board: Board, protocol: str, task: str, method: str, origin: str | None) -> Board:
    """Return the cell of a method: bits of its questions in order, shares of bytes and time, and
    its ``origin`` if that is not the board's.
    """
    methods = board["asked"].setdefault(protocol, {}).setdefault(task, {})
    empty = {"right": "", "bytes": [], "cost": []} | ({"origin": origin} if origin else {})
    found: Board = methods.setdefault(method, empty)
    return found


def _origin(board: Board, release: str, machine: str) -> str | None:
    """Return the release and machine of answers, or None if the release is the board's."""
    return None if release == board["made"]["foveate"] else f"foveate {release} on {machine}"


def answer_question(
    board: Board,
    loaded: Any,
    protocol: Protocol,
    task: str,
    sample: Sample,
    methods: Sequence[str],
    index: int,
) -> None:
    """Answer one question under the methods that answered all before it but not this one."""
    start, budget = time.time(), board["made"]["budget"]
    origin = _origin(board, versions_of_results()["foveate"], processor(torch.device("cpu")))
    cells = {method: _cell(board, protocol, task, method, origin) for method in (*methods, FULL)}
    methods_by_spec = {
        contenders([method], [budget])[0]: method
        for method in methods
        if _continues(cells[method], origin, index)
    }
    if not methods_by_spec:
        return
    for row in rows(loaded, TASKS[task], sample, list(methods_by_spec), protocol):
        cell = cells[methods_by_spec.get(row["spec"], FULL)]
        if _continues(cell, origin, index):
            _note(cell, row)
        elif index < len(cell["right"]) and cell["right"][index] != _bit(row):
            raise SystemExit(f"{task}, question {index}: the full cache answers otherwise.")
    board["seconds"] = round(board["seconds"] + time.time() - start, 1)


def _continues(cell: Board, origin: str | None, index: int) -> bool:
    """Check if an answer to this question is the next of a cell, and of its origin."""
    return len(cell["right"]) == index and cell.get("origin") == origin


def _bit(row: Mapping[str, Any]) -> str:
    return RIGHT if row["right"] else WRONG


def _note(cell: Board, row: Mapping[str, Any]) -> None:
    if "error" in row:
        cell["right"] += REFUSED
        cell.setdefault("refused", row["error"])
        return
    cell["right"] += _bit(row)
    if len(cell["cost"]) < TIMED:
        cell["bytes"].append(round(row["kv_bytes"] / row["kv_bytes_full"], 4))
        cell["cost"].append(round((row["compress_s"] + row["sums_s"]) / row["prefill_s"], 3))


if __name__ == "__main__":
    main()
