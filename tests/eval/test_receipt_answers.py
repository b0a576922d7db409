"""The board of receipts: the answers of `foveate eval`, with far fewer passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality.receipt_answers import answers, receipts
from benchmarks.quality.receipt_page import write_page
from benchmarks.quality.receipts import Board, Part, best_of
from foveate.loading.model import Loaded
from foveate.prompts.sample import Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.results import Results
from foveate_lab.eval.task_registry import Task
from foveate_lab.eval.tasks import find_task
from tests.eval.benchmarks.published import FIELDS, Writes

SPECS = (
    "snapkv:budget=40%,window=4",
    "adakv:budget=30%,window=4",
    "h2o:budget=40%",
    "h2o:budget=40%,recent=0.25,when=over_budget",  # is decoded by itself
    "roco:budget=1%,nonesuch=1",  # is refused
)
REFUSED = SPECS[-1]
EQUAL = ("tokens", "visual_tokens", "kept_tokens", "kv_bytes", "kv_bytes_full", "question")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two receipts."""
    writes = Writes(tmp_path_factory.mktemp("sroie"))
    for name, company in (("7", "99 Mart"), ("8", "Aeon Co")):
        writes.json(f"data/key/{name}.json", {**FIELDS, "company": company})
        writes.image(f"data/img/{name}.jpg")
    return writes.path


@pytest.fixture(scope="module")
def task(folder: Path) -> Task:
    return find_task(f"sroie(longest=8)={folder}")


@pytest.mark.parametrize("protocol", ["query-agnostic", "query-aware"])
def test_rows_are_those_of_an_evaluation(loaded: Loaded, task: Task, protocol: Protocol) -> None:
    """Answers may part where two tokens are as likely; what is stored never does."""
    (questions,) = receipts(task, 1)
    assert len(questions) == 4

    def missing(sample: Sample) -> list[str]:
        return [FULL, *SPECS] if sample is not questions[1] else [FULL, SPECS[0]]

    found = {
        (r["sample"], r["spec"]): r for r in answers(loaded, task, questions, missing, protocol)
    }
    wanted = {
        (row["sample"], row["spec"]): row
        for sample in questions
        for row in measured(loaded, task, sample, missing(sample)[1:], protocol)
    }
    assert found.keys() == wanted.keys()
    assert len(found) == 3 * 6 + 2
    same = 0
    for key, row in found.items():
        if key[1] == REFUSED:
            assert row["error"] == wanted[key]["error"]
        else:
            assert {name: row[name] for name in EQUAL} == {n: wanted[key][n] for n in EQUAL}
            same += row["prediction"] == wanted[key]["prediction"]
    assert same >= 14  # of 17, whatever ties there are


def test_a_board_goes_on_where_it_stopped_and_its_page_has_all_answers(
    loaded: Loaded, task: Task, folder: Path, tmp_path: Path
) -> None:
    about: dict[str, Any] = {"model": "tiny", "weights": "abc", "all_columns": True, "versions": {}}
    written: list[int] = []
    runs = tmp_path / "runs"
    with Results(runs / "query-agnostic", {**about, "protocol": "x"}, resume=True) as results:
        common = ("query-agnostic", results, 1e12, lambda: written.append(len(results.rows)))
        blind = Board(loaded, find_task(f"sroie(image=none,longest=8)={folder}"), *common)
        board = Board(loaded, task, *common)
        assert not Board(loaded, task, *common[:2], 0.0, print).answer(Part(0, 2, [FULL]))
        assert blind.answer(Part(0, 2, [FULL]))
        assert board.answer(Part(0, 1, [FULL, *SPECS[:2]]))
        before = len(results.rows)
        assert before == 8 + 4 * 3
        board.answer(Part(0, 1, [FULL, *SPECS[:2]]))
        assert len(results.rows) == before
        board.answer(Part(1, 2, [FULL, SPECS[0]]))
        assert len(results.rows) == before + 8
    write_page(runs, "sroie", tmp_path)
    page = (tmp_path / "sroie.md").read_text()
    assert "4 questions" in page
    assert "8 questions" in page
    assert page.count("| no image |") == 2
    written_data = json.loads((tmp_path / "sroie.json").read_text())
    first, best = written_data["counts"]["query-agnostic"]
    assert (first["questions"], best["questions"], best["receipts"]) == (4, 8, 2)
    assert first["policies"]["full"]["same"] == 4
    assert [*best["policies"]] == ["full", "snapkv:window=4 40%"]
    data = written_data["predictions"]["query-agnostic"]
    counted = [len(n.split()) for texts in data["questions"].values() for n in texts.values()]
    assert sum(counted) == before + 8
    assert {"full", "no image", "snapkv:window=4 40%"} <= {*data["specs"]}


def test_totals_of_several_receipts_have_a_page_without_fields(
    loaded: Loaded, folder: Path, tmp_path: Path
) -> None:
    about = {"model": "tiny", "weights": "abc", "all_columns": False, "versions": {}}
    several = find_task(f"sroie_several(receipts=2,longest=8)={folder}")
    runs = tmp_path / "runs"
    with Results(runs / "query-agnostic", {**about, "protocol": "x"}, resume=True) as results:
        board = Board(loaded, several, "query-agnostic", results, 1e12, lambda: None)
        assert board.answer(Part(0, 5, [FULL, SPECS[0]]))
        assert len(results.rows) == 4
    write_page(runs, "several", tmp_path)
    page = (tmp_path / "several.md").read_text()
    assert "2 questions" in page
    assert "| method | budget | right | behind | same | letters | KV | seconds |" in page


def test_the_best_methods_are_chosen_by_right_answers_at_one_budget() -> None:
    def rows(method: str, budget: str, right: int) -> list[dict[str, Any]]:
        spec = f"{method}:budget={budget}"
        return [{"spec": spec, "score": float(n < right)} for n in range(9)]

    right = {"snapkv": 5, "h2o": 4, "csp": 3, "david": 2, "lookm": 1, "random": 9}
    asked = [row for method, n in right.items() for row in rows(method, "10%", n)]
    asked += rows("lookm", "20%", 9)
    specs = [f"{method}:budget={budget}" for method in right for budget in ("20%", "10%")]
    assert best_of(asked, specs) == specs[:8]
