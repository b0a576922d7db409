r"""Board of methods on real scans: four fields of SROIE's receipts, read by the reader.

    PYTHONPATH=demo_model python -m benchmarks.quality.receipts --data ICDAR-2019-SROIE \
        [--protocols query-agnostic query-aware] [--receipts 300] [--all-methods 100] [--hours 8] \
        [--all-columns] [--methods kvzip ...]

Answers are stored one by one under benchmarks/runs; the same command continues. Two processes with
a protocol each may run side by side. All methods answer about the first receipts; then the full
cache and the best four (by right answers at 10 %) about the others; last, also when time is over,
the full cache without images. Writes
benchmarks/results/sroie.md (sroie_columns.md), and beside it every prediction and hashes of weights
and receipts as JSON. `--only-write` writes the answers so far. `--several 2` asks for totals of two
receipts in a prompt: sroie_several_2.md. Missing profiles are calibrated first, on drawn pages.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import torch

from benchmarks.quality.receipt_answers import answers, receipts
from benchmarks.quality.receipt_page import right_answers, write_page
from benchmarks.quality.receipt_profiles import profiles
from foveate.compression.labels import named
from foveate.hf.saving.identity import ModelIdentity
from foveate.loading.hardware import versions_of_results
from foveate.loading.model import Loaded
from foveate.prompts.sample import Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.contenders import contenders
from foveate_lab.eval.results import Results
from foveate_lab.eval.task_registry import Task
from foveate_lab.eval.tasks import find_task
from foveate_reader.model import NAME
from foveate_reader.model import load as load_reader

RUNS = Path(__file__).parents[1] / "runs" / "sroie"
BUDGETS = ("20%", "10%", "5%")
BEST, REFERENCE = 4, "random"
EVERY = 10  # receipts between two writings of the page
METHODS = (
    "recommended",
    "kvzip",
    "snapkv:window=0.25",
    "mixkv:window=0.25",
    "prefixkv:when=after_prefill",
    "csp",
    "david",
    "lookm",
    "random:recent=0.25",
)


class Part(NamedTuple):
    """Receipts from ``start`` to before ``end``, and the specs that answer about them."""

    start: int
    end: int
    specs: Sequence[str]


class Board(NamedTuple):
    """Answers of one task under one protocol, which grow receipt by receipt."""

    loaded: Loaded
    task: Task
    protocol: Protocol
    results: Results
    until: float
    write: Callable[[], None]

    def answer(self, part: Part) -> bool:
        """Answer what is missing of a part; return False if time is over before its end."""
        for number, questions in enumerate(receipts(self.task, part.end)):
            if number < part.start:
                continue
            if time.time() > self.until:
                return False
            rows = list(self._missing_answers(questions, part.specs))
            for row in rows:
                self.results.add(row)
            if rows and number % EVERY == EVERY - 1:
                self.write()
                print(f"{self.protocol}: {number + 1} receipts of {self.task.name}", flush=True)
        return True

    def _missing_answers(
        self, questions: Sequence[Sample], specs: Sequence[str]
    ) -> Iterator[dict[str, Any]]:
        def missing(sample: Sample) -> list[str]:
            return [s for s in specs if (self.task.name, sample.name, s) not in self.results]

        return answers(self.loaded, self.task, questions, missing, self.protocol)


def main() -> None:
    """Answer what is missing, and write the page."""
    a = _options()
    torch.set_num_threads(1)
    loaded = loaded_reader(a.all_columns)
    weights = ModelIdentity.of(loaded.model).weights
    kind = f"several_{a.several}" if a.several else "fields"
    title = "_".join(["sroie", *[kind] * bool(a.several), *["columns"] * a.all_columns])
    home = a.runs / f"{weights[:12]}{'-columns' if a.all_columns else ''}"
    write = partial(write_page, home / kind, title)
    if not a.only_write:
        found = profiles(loaded, home / "profiles").items()
        specs = contenders([*(f"{m}:profile={path}" for m, path in found), *a.methods], a.budgets)
        about = {"model": NAME, "weights": weights, "all_columns": a.all_columns}
        for protocol in a.protocols:
            configuration = {**about, "protocol": protocol, "versions": versions_of_results()}
            with Results(home / kind / protocol, configuration, resume=True) as results:
                ask = partial(Board, loaded, protocol=protocol, results=results, write=write)
                _answer_all(a, partial(ask, until=time.time() + 3600 * a.hours), specs, results)
    write()


def _answer_all(
    a: argparse.Namespace, board: Callable[..., Board], specs: Sequence[str], results: Results
) -> None:
    """Answer the first receipts under all specs, the others under the best, and without images."""
    folder = a.data.as_posix()
    task = find_task(
        f"sroie_several(receipts={a.several})={folder}" if a.several else f"sroie={folder}"
    )
    if board(task).answer(Part(0, min(a.all_methods, a.receipts), [FULL, *specs])):
        best = [FULL, *best_of(results.rows, specs)]
        board(task).answer(Part(a.all_methods, a.receipts, best))
    if not a.several:
        answered = len({row["sample"].partition("/")[0] for row in results.rows})
        blind = board(find_task(f"sroie(image=none)={folder}"), until=float("inf"))
        blind.answer(Part(0, answered, [FULL]))


def best_of(rows: Sequence[Mapping[str, Any]], specs: Sequence[str]) -> list[str]:
    """Return the specs, at all budgets, of the methods with most right answers at 10 %."""
    right = right_answers(rows)
    methods = [method for method in right if not method.startswith(REFERENCE)]
    best = sorted(methods, key=lambda method: -right[method])[:BEST]
    return [spec for spec in specs if named(spec).method in best]


def loaded_reader(all_columns: bool = False) -> Loaded:
    """Load the reader, with a token for each character of an image or for each column."""
    model, processor = load_reader(all_columns=all_columns)
    return Loaded(NAME, model, processor, sees=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of SROIE")
    parser.add_argument("--receipts", type=int, default=300, help="receipts, or groups of them")
    parser.add_argument("--all-methods", type=int, default=100, help="receipts for all methods")
    parser.add_argument("--several", type=int, choices=(2, 4, 8), help="receipts in a prompt")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="beside the calibrated ones")
    parser.add_argument("--budgets", nargs="+", default=BUDGETS)
    parser.add_argument(
        "--all-columns", action="store_true", help="a visual token for each column of text"
    )
    parser.add_argument("--hours", type=float, default=24.0, help="time for each protocol")
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--only-write", action="store_true", help="write the answers so far")
    parser.add_argument(
        "--protocols", nargs="+", choices=get_args(Protocol), default=get_args(Protocol)
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
