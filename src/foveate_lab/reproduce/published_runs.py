"""Runs that a paper's authors publish, set by set and answer by answer, beside ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from foveate.data import read_record, read_records, read_text
from foveate.errors import InvalidInput
from foveate_lab.eval.metrics.milebench import normalised
from foveate_lab.eval.summary import estimate, numbers_of
from foveate_lab.eval.tasks import find_sources
from foveate_lab.reproduce.experiment import Experiment
from foveate_lab.reproduce.published import PublishedRun
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.tables.table import METHODS_DOWN, Row, Table, TableCell, TableLine
from foveate_lab.reproduce.trials import GridTrial

SCORES = "eval_score.md"  # an HTML table: a row for each run, a column for each set
OUTPUTS = "outputs"  # OUTPUTS/RUN/SET/ holds the files below
SCORE, ANSWERS = "eval.json", "pred.json"
UNKNOWN = ("N/A", "None")  # "None" also stands for a score of 0: the authors' script has "or"
ALL = "all sets"
REMARKS = {
    "score": "in percent; of all sets the mean",
    "alike": "percent of the matched answers that are equal after MileBench's normalisation",
    "from": "begin of the 95 % interval of alike",
    "to": "end of the 95 % interval of alike",
    "matched": "answers of one id whose references are equal",
    "only ours": "answers without a published one of their id and reference",
    "only theirs": "published answers without one of ours",
}


class PublishedSet(NamedTuple):
    """Results of a set: its score from 0 to 1, and answer and reference of each sample, by id."""

    score: float | None
    answers: Mapping[str, tuple[str, str]]


def read_run(folder: Path, name: str) -> dict[str, PublishedSet]:
    """Read a run from a copy of the authors' repository, by set; empty if it holds none.

    Raises:
        InvalidInput: a file that is there has another form.
    """
    scores = _scores(folder / SCORES).get(name, {})
    outputs = folder / OUTPUTS / name
    for path in sorted(outputs.glob(f"*/{SCORE}")):
        record = read_record(path)
        metric = "Accuracy" if record.has("Accuracy") else "Rouge-L f"
        scores.setdefault(path.parent.name, float(record.number(metric)))
    answers = {path.parent.name: _answers(path) for path in sorted(outputs.glob(f"*/{ANSWERS}"))}
    sets = sorted({*scores, *answers})
    return {
        name_of_set: PublishedSet(scores.get(name_of_set), answers.get(name_of_set, {}))
        for name_of_set in sets
    }


def _scores(path: Path) -> dict[str, dict[str, float]]:
    """Read the table of scores, run by run; without the file it is empty."""
    if not path.is_file():
        return {}
    rows = [
        re.findall(r"<t[hd]>(.*?)</t[hd]>", row)
        for row in re.findall(r"(?s)<tr>(.*?)</tr>", read_text(path))
    ]
    if not rows or rows[0][:1] != ["Method"] or any(len(row) != len(rows[0]) for row in rows):
        raise InvalidInput(
            f"{path} holds no table with a row for each method and a column for each set. Take the "
            "file from the authors' repository."
        )
    head = rows[0][1:]
    return {
        name: {
            name_of_set: _number(text, path)
            for name_of_set, text in zip(head, texts, strict=True)
            if text not in UNKNOWN
        }
        for name, *texts in rows[1:]
    }


def _number(text: str, path: Path) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise InvalidInput(f"{path}: {text!r} is no score. Give a number or N/A.") from error


def _answers(path: Path) -> dict[str, tuple[str, str]]:
    return {
        record.text_or_number("sample_id"): (
            record.text("pred_response"),
            record.text_or_number("gt_response"),
        )
        for record in read_records(path)
    }


def check_published(experiments: Sequence[Experiment], folder: Path) -> None:
    """Check that the folder holds some published run of these experiments.

    Raises:
        InvalidInput: it does not, or no run of these experiments is published.
    """
    names = dict.fromkeys(run.name for experiment in experiments for run in runs_of(experiment))
    if not names:
        raise InvalidInput(
            "--published: no run of these experiments is published. Name csp:table1-7b or "
            "csp:table1-13b, or leave it out."
        )
    if not any(read_run(folder, name) for name in names):
        raise InvalidInput(
            f"{str(folder)!r} holds neither {SCORES} nor {OUTPUTS}/ with one of "
            f"{', '.join(names)}. Give a copy of the authors' repository."
        )


def runs_of(experiment: Experiment) -> list[PublishedRun]:
    """Return the published runs that have the settings of some line of an experiment."""
    trial = experiment.trial
    arms = {arm.name for arm in trial.arms} if isinstance(trial, GridTrial) else set()
    budgets = trial.budgets if isinstance(trial, GridTrial) else ()
    return [
        run
        for run in experiment.of.runs
        if run.model in experiment.models and run.arm in arms and run.budget in budgets
    ]


def compare_runs(
    folder: Path, experiment: Experiment, settings: Sequence[Setting]
) -> Iterator[Table]:
    """Yield a table for each published run: scores by set, and how many answers are alike."""
    for run in runs_of(experiment):
        mine = {name for task in experiment.trial.tasks() for name in find_sources(task)}
        found = read_run(folder, run.name)
        published = {name: found[name] for name in found if name in mine}
        for setting in settings:
            if published and setting.model == run.model:
                yield _table(run, published, _rows(experiment, run, setting))


def _rows(experiment: Experiment, run: PublishedRun, setting: Setting) -> dict[str, list[Row]]:
    """Return the rows of the run's line by set; samples are named SET/ID."""
    trial: Any = experiment.trial
    (arm,) = (arm for arm in trial.arms if arm.name == run.arm)
    requests = trial.requests(setting)
    sets: dict[str, list[Row]] = {}
    there = setting.rows(requests)
    for request, specs in requests.items():
        spec = setting.spec(arm.spec_for(request.task, setting.model), run.budget)
        for row in there[request.name] if spec in specs else ():
            if row["spec"] == spec and "error" not in row:
                sets.setdefault(row["sample"].partition("/")[0], []).append(row)
    return sets


class _Compared(NamedTuple):
    """A set's scores, whether each pair of matched answers is alike, and unmatched ones."""

    ours: float | None
    theirs: float | None
    alike: list[bool]
    only_ours: int
    only_theirs: int
    samples: int


def _compare(rows: Sequence[Row], published: PublishedSet) -> _Compared:
    numbers = numbers_of(rows, "score")
    alike = []
    for row in rows:
        answer, reference = published.answers.get(row["sample"].partition("/")[2], ("", None))
        if reference is not None and normalised(reference) == normalised(row["answers"][0]):
            alike.append(normalised(answer) == normalised(row["prediction"]))
    return _Compared(
        100 * mean(numbers) if numbers else None,
        None if published.score is None else 100 * published.score,
        alike,
        len(rows) - len(alike),
        len(published.answers) - len(alike),
        len(rows),
    )


def _table(
    run: PublishedRun, published: Mapping[str, PublishedSet], rows: Mapping[str, Sequence[Row]]
) -> Table:
    nothing = PublishedSet(None, {})
    sets = {
        name: _compare(rows.get(name, ()), published.get(name, nothing))
        for name in sorted({*published, *rows})
    }
    both = [result for result in sets.values() if None not in (result.ours, result.theirs)]
    total = _Compared(
        mean(result.ours for result in both if result.ours is not None) if both else None,
        mean(result.theirs for result in both if result.theirs is not None) if both else None,
        [same for result in sets.values() for same in result.alike],
        sum(result.only_ours for result in sets.values()),
        sum(result.only_theirs for result in sets.values()),
        sum(result.samples for result in sets.values()),
    )
    return Table(
        f"{run.arm}: beside the authors' run {run.name} ({run.source})",
        tuple(REMARKS),
        tuple(_line(run, name, result) for name, result in {**sets, ALL: total}.items()),
        layout=METHODS_DOWN,
    )


def _line(run: PublishedRun, name: str, result: _Compared) -> TableLine:
    interval = estimate(map(float, result.alike)) if result.alike else None
    measured = {
        "score": result.ours,
        "alike": 100 * interval.mean if interval else None,
        "from": 100 * interval.low if interval else None,
        "to": 100 * interval.high if interval else None,
        "matched": float(len(result.alike)),
        "only ours": float(result.only_ours),
        "only theirs": float(result.only_theirs),
    }
    cells = [TableCell(value, None, REMARKS[column]) for column, value in measured.items()]
    printed = "" if result.theirs is None else f"{result.theirs:.1f}"
    cells[0] = cells[0]._replace(paper=result.theirs, printed=printed, samples=result.samples)
    return TableLine(run.model, name, run.budget, "", "", tuple(cells))
