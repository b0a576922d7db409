"""Authors' runs beside ours: files in the form of CSP's repository, written here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foveate.errors import InvalidInput
from foveate_lab.reproduce import EXPERIMENTS
from foveate_lab.reproduce.published_runs import (
    PublishedSet,
    check_published,
    compare_runs,
    read_run,
    runs_of,
)
from foveate_lab.reproduce.registry import list_requirements
from tests.reproduce.conftest import Unrun

EXPERIMENT = EXPERIMENTS["csp:table1-7b"]
RUN = "new_csp_v1"
TABLE = """<table>
<tr><th>Method</th><th>ALFRED</th><th>TQA</th><th>WikiVQA</th><th>ImageNeedleInAHaystack</th></tr>
<tr><td>new_csp_v1</td><td>0.25</td><td>0.405</td><td>N/A</td><td>None</td></tr>
<tr><td>another</td><td>1</td><td>N/A</td><td>N/A</td><td>N/A</td></tr>
</table>"""


def answer(number: int, said: str, right: str) -> dict[str, Any]:
    """A record of pred.json."""
    return {
        "sample_id": number,
        "image": ["0.jpg"],
        "question": "<ImageHere>Which?",
        "gt_response": right,
        "gen_model_id": "llava-v1.5",
        "pred_response": said,
        "gen_kwargs": {"max_new_tokens": 512, "do_sample": False},
    }


def write_run(folder: Path, **sets: list[dict[str, Any]]) -> Path:
    (folder / "eval_score.md").write_text(TABLE)
    for name, records in sets.items():
        out = folder / "outputs" / RUN / name
        out.mkdir(parents=True)
        (out / "pred.json").write_text(json.dumps(records, indent=4))
        score = {"Accuracy": 0.0, "image_quantity_level-Accuracy": {"Few": 0}}
        (out / "eval.json").write_text(json.dumps(score))
    return folder


def test_scores_and_answers_are_read_by_set(tmp_path):
    write_run(tmp_path, TQA=[answer(3, "", "b"), answer(7, "B.", "b")], OCR=[])
    assert read_run(tmp_path, RUN) == {
        "ALFRED": PublishedSet(0.25, {}),
        "OCR": PublishedSet(0.0, {}),
        "TQA": PublishedSet(0.405, {"3": ("", "b"), "7": ("B.", "b")}),
    }
    assert read_run(tmp_path, "none") == {}


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("eval_score.md", "| Method | ALFRED |", "no table with a row for each method"),
        ("eval_score.md", TABLE.replace("0.25", "x"), "'x' is no score"),
        (f"outputs/{RUN}/TQA/pred.json", '[{"sample_id": 1}]', "pred_response"),
        (f"outputs/{RUN}/TQA/eval.json", '{"F1": 1}', "Rouge-L f"),
    ],
)
def test_files_of_another_form_are_refused(tmp_path, file, text, says):
    write_run(tmp_path, TQA=[])
    (tmp_path / file).write_text(text)
    with pytest.raises(InvalidInput, match=says):
        read_run(tmp_path, RUN)


def our_rows(
    answers: Mapping[str, tuple[str, str, float | None]], task: str
) -> list[dict[str, Any]]:
    """Rows of a task of MileBench under the line that the run has."""
    (arm,) = (one for one in EXPERIMENT.trial.arms if one.name == "CSP, as released")
    spec = arm.spec_for(task, "llava-1.5-7b").replace("{B}", "20%")
    rows = []
    for name, (said, right, score) in answers.items():
        row = {"task": task, "sample": name, "spec": spec, "prediction": said, "score": score}
        rows.append({**row, "answers": [right]})
    return rows


def test_a_table_sets_scores_beside_ours_and_counts_answers_that_are_alike(
    tmp_path: Path, unrun: Unrun
):
    """Matched are ids whose references agree; equal are answers without case and punctuation."""
    published = [answer(n, f"Answer {n}.", "b") for n in range(8)]
    another = [answer(9, "x", "another reference")]
    folder = write_run(tmp_path, TQA=[*published, *another], NotOfTheTable=published)
    (setting,) = unrun(EXPERIMENT)
    alike = {f"TQA/{n}": (f"answer {n}" if n < 6 else "other", "B", n % 2) for n in range(8)}
    more = {"TQA/9": ("x", "B", 1), "TQA/44": ("x", "B", 1)}
    for row in our_rows({**alike, **more}, "milebench_s1(set=TQA)"):
        setting.results.add(row)
    for row in our_rows({"ALFRED/0": ("x", "B", 0.5)}, "milebench_s4"):
        setting.results.add(row)
    setting = replace(setting, limit=50)
    (table,) = compare_runs(folder, EXPERIMENT, [setting])
    assert "new_csp_v1" in table.title
    assert [line.method for line in table.lines] == ["ALFRED", "TQA", "all sets"]
    lines = {line.method: dict(zip(table.columns, line.cells, strict=True)) for line in table.lines}
    tqa = lines["TQA"]
    assert tqa["score"].measured == 60
    assert tqa["score"].paper == pytest.approx(40.5)
    assert tqa["score"].difference == pytest.approx(19.5)
    counts = {name: tqa[name].measured for name in ("matched", "only ours", "only theirs")}
    assert counts == {"matched": 8, "only ours": 2, "only theirs": 1}
    assert tqa["alike"].measured == 75
    # Wilson's interval of 6 of 8
    assert (tqa["from"].measured, tqa["to"].measured) == pytest.approx((40.93, 92.85), abs=0.01)
    assert lines["ALFRED"]["alike"].measured is None
    assert lines["ALFRED"]["only ours"].measured == 1
    assert lines["all sets"]["matched"].measured == 8
    assert lines["all sets"]["score"].measured == (60 + 50) / 2
    assert lines["all sets"]["score"].paper == pytest.approx((40.5 + 25) / 2)


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match=r"holds neither eval_score\.md nor outputs/"):
        check_published([EXPERIMENT], tmp_path)
    with pytest.raises(InvalidInput, match="no run of these experiments is published"):
        check_published([EXPERIMENTS["csp:fig4"]], tmp_path)


def test_every_published_run_has_a_line_of_ours():
    csp = EXPERIMENT.of
    found = [run for one in EXPERIMENTS.values() for run in runs_of(one)]
    assert {run.name for run in found} == {run.name for run in csp.runs}
    assert any("--published" in line for line in list_requirements(EXPERIMENT))
