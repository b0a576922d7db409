"""Page of `receipts.py`: right answers by method, budget and field, and every prediction."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.output import RESULTS, machine, table, write
from benchmarks.quality.named import name as name_of
from foveate.compression.labels import named
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.benchmarks.sroie import QUESTIONS, normalised
from foveate_lab.eval.results import CONFIGURATION, read
from foveate_lab.eval.summary import Estimate, mean_difference

Rows = Sequence[Mapping[str, Any]]
Answers = dict[str, dict[str, Mapping[str, Any]]]
"""Rows by spec and question."""
RANKED_AT = "10%"
BLIND = "image=none"  # in the name of the task whose prompts have no image
INTRODUCTION = """\
Fields of scanned receipts of SROIE's test merchants (totals, where a prompt has several), read by
the reader ({form}). No receipt was used to train it, to calibrate a profile or to choose a setting;
the methods of the longer table are the best of the first receipts. Right: the same text, but for
case, blanks and a total's currency. Behind: difference to the full cache on the same receipts, with
95 % intervals (bootstrap over receipts). Same: answers equal to the full cache's. Letters: right if
only letters and digits count. Every prediction is in the JSON file beside this page."""


def write_page(folder: Path, title: str, results: Path = RESULTS) -> None:
    """Write TITLE.md and TITLE.json of the runs in a folder, one for each protocol."""
    stored = {
        protocol.name: read(protocol)
        for protocol in sorted(folder.iterdir())
        if (protocol / CONFIGURATION).exists()
    }
    runs = {protocol: [r for r in run.rows if "error" not in r] for protocol, run in stored.items()}
    refused = [row for run in stored.values() for row in run.rows if "error" in row]
    (about, *_) = (run.configuration for run in stored.values())
    form = "a token for each " + ("column" if about["all_columns"] else "character")
    several = next((row["labels"].get("receipts") for rows in runs.values() for row in rows), None)
    heading = "# Real receipts" + (f", {several} in a prompt" if several else "")
    lines = [heading, "", INTRODUCTION.format(form=form), ""]
    for protocol, rows in runs.items():
        lines += [f"## {protocol.capitalize()}", "", *_tables(rows), ""]
    if refused:
        lines += ["## Refused", "", *sorted({_refusal(row) for row in refused}), ""]
    here = machine()
    data = {
        "model": {key: about[key] for key in ("model", "weights", "all_columns", "versions")},
        "machine": here,
        "receipts": _digest(runs),
        "counts": {protocol: _counts(rows) for protocol, rows in runs.items()},
        "predictions": {protocol: _predictions(rows) for protocol, rows in runs.items()},
    }
    lines += [f"Weights {about['weights'][:16]}, receipts {data['receipts']}; {_facts(here)}."]
    write(title, "\n".join(lines), data, results)


def _facts(about: Mapping[str, Any]) -> str:
    """Return the processor, threads and versions in words."""
    versions = f"torch {about['torch']}, transformers {about['transformers']}"
    return f"{about['machine']}, threads: {about['threads']}, {versions}"


def _refusal(row: Mapping[str, Any]) -> str:
    return f"- {name_of(named(row['spec']).method)}: {row['error']['message']}"


def _tables(rows: Rows) -> list[str]:
    """Return the tables of a protocol: all methods on the first receipts, the best on all."""
    by_spec = _by_spec(rows)
    lines: list[str] = []
    for specs, common in _parts(by_spec):
        blind = [r for r in rows if BLIND in r["task"] and r["sample"] in common]
        lines += [f"{len(common)} questions", "", *_table(by_spec, specs, common, blind), ""]
    return lines or ["No answers yet."]


def _parts(by_spec: Answers) -> Iterator[tuple[list[str], set[str]]]:
    """Yield all specs and the questions that all have answered, then the best and theirs."""
    sizes = sorted(map(len, by_spec.values()))
    for size in dict.fromkeys((*sizes[:1], *sizes[-2:][:1])):  # not that of the full cache alone
        specs = [spec for spec, of_spec in by_spec.items() if len(of_spec) >= size]
        common = set.intersection(*({*by_spec[spec]} for spec in specs))
        yield _best_first(by_spec, specs, common), common


def _best_first(by_spec: Answers, specs: Sequence[str], common: set[str]) -> list[str]:
    """Return the full cache, then methods by their right answers at 10 %, with their budgets."""
    right = right_answers([by_spec[spec][sample] for spec in specs for sample in common])
    return sorted(specs, key=lambda spec: -right.get(named(spec).method, math.inf))


def right_answers(rows: Rows) -> dict[str, float]:
    """Return each method's right answers at 10 %."""
    right: dict[str, float] = {}
    for row in rows:
        method, budget = named(row["spec"])
        if budget == RANKED_AT and "error" not in row:
            right[method] = right.get(method, 0.0) + row["score"]
    return right


def _by_spec(rows: Rows) -> Answers:
    """Return the rows of each policy by question, without those that saw no image."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if BLIND not in row["task"]:
            found.setdefault(row["spec"], {})[row["sample"]] = row
    return found


def _table(
    by_spec: Answers,
    specs: Sequence[str],
    common: set[str],
    blind: Rows,
) -> list[str]:
    full = by_spec[FULL]
    fields = [f for f in QUESTIONS if any(full[s]["labels"].get("field") == f for s in common)]
    heads = ["method", "budget", "right", "behind", "same", "letters", *fields, "KV", "seconds"]
    lines: list[list[str]] = []
    for spec in specs:
        rows = [by_spec[spec][sample] for sample in sorted(common)]
        method, budget = named(spec)
        lines.append([name_of(method), budget, *_cells(rows, full, fields)])
    if blind:
        lines.append(["no image", "", *_cells(blind, full, fields)])
    return table(heads, lines)


def _cells(rows: Rows, full: Mapping[str, Mapping[str, Any]], fields: Sequence[str]) -> list[str]:
    theirs = [full[row["sample"]] for row in rows]
    same = mean(a["prediction"] == b["prediction"] for a, b in zip(rows, theirs, strict=True))
    by_field = {f: [r["score"] for r in rows if r["labels"].get("field") == f] for f in fields}
    is_full = rows[0]["spec"] == FULL
    return [
        f"{mean(row['score'] for row in rows):.3f}",
        "" if is_full and rows[0] in theirs else _signed(_behind(rows, theirs)),
        f"{same:.3f}",
        f"{mean(map(_letters_right, rows)):.3f}",
        *(f"{mean(by_field[field]):.2f}" for field in fields),
        f"{mean(row['kv_bytes'] / row['kv_bytes_full'] for row in rows):.3f}",
        f"{median(row['compress_s'] for row in rows):.2f}",
    ]


def _behind(rows: Rows, theirs: Rows) -> Estimate:
    """Return the mean difference of scores, whose samples are receipts."""
    by_receipt: dict[str, list[float]] = {}
    for mine, other in zip(rows, theirs, strict=True):
        receipt = mine["sample"].partition("/")[0]
        by_receipt.setdefault(receipt, []).append(mine["score"] - other["score"])
    return mean_difference([mean(differences) for differences in by_receipt.values()])


def _signed(x: Estimate) -> str:
    return f"{x.mean:+.3f} ({x.low:+.3f} to {x.high:+.3f})"


def _letters_right(row: Mapping[str, Any]) -> float:
    field = row["labels"].get("field", "total")
    texts = (row["prediction"], row["answers"][0])
    right, predicted = (normalised(text, field, letters=True) for text in texts)
    return float(right == predicted)


def _counts(rows: Rows) -> list[dict[str, Any]]:
    """Return right and same answers of every policy, for each of a protocol's tables."""
    by_spec = _by_spec(rows)
    return [
        {
            "questions": len(common),
            "receipts": len({sample.partition("/")[0] for sample in common}),
            "policies": {
                _published(next(iter(by_spec[spec].values()))): _counted(by_spec, spec, common)
                for spec in specs
            },
        }
        for specs, common in _parts(by_spec)
    ]


def _counted(by_spec: Answers, spec: str, common: set[str]) -> dict[str, int]:
    full, mine = by_spec[FULL], by_spec[spec]
    return {
        "right": sum(round(mine[sample]["score"]) for sample in common),
        "same": sum(mine[s]["prediction"] == full[s]["prediction"] for s in common),
    }


def _digest(runs: Mapping[str, Rows]) -> str:
    """Return a hash of all questions with their images and answers, as 16 digits."""
    questions = sorted({row["question"] for rows in runs.values() for row in rows})
    return hashlib.sha256("".join(questions).encode()).hexdigest()[:16]


def _predictions(rows: Rows) -> dict[str, Any]:
    """Return the specs, and for each question its answers, each with the indices of its specs."""
    specs = list(dict.fromkeys(_published(row) for row in rows))
    index = {spec: number for number, spec in enumerate(specs)}
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        texts = found.setdefault(row["sample"], {})
        texts.setdefault(row["prediction"], []).append(str(index[_published(row)]))
    questions = {
        sample: {text: " ".join(numbers) for text, numbers in texts.items()}
        for sample, texts in found.items()
    }
    return {"specs": specs, "questions": questions}


def _published(row: Mapping[str, Any]) -> str:
    """Return a row's spec without folders, and without an image if it had none."""
    method, budget = named(row["spec"])
    if BLIND in row["task"]:
        return "no image"
    return f"{name_of(method).strip('`')} {budget}".strip()
