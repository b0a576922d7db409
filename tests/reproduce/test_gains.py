"""Gains over base methods, pair by pair, beside those of the paper's own table."""

from __future__ import annotations

from pathlib import Path

import pytest

from foveate_lab.eval.results import Results
from foveate_lab.reproduce import EXPERIMENTS
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.tables.printed import printed
from foveate_lab.reproduce.trials import Arm, Gains, columns, paired
from foveate_lab.reproduce.trials.gains import relative

PAIRS = (
    (
        Arm(name="SnapKV", spec="snapkv:budget={B}"),
        Arm(name="SnapKV + MixKV", spec="mixkv:budget={B}"),
    ),
    (
        Arm(name="AdaKV", spec="adakv:budget={B}"),
        Arm(name="AdaKV + MixKV", spec="mixkv+adakv:budget={B}"),
    ),
)
SCORES = {"snapkv": (0.5, 0.2), "mixkv": (0.6, 0.3), "adakv": (0.4, 0.5), "mixkv+adakv": (0.4, 0.4)}
GRID = Gains(
    title="t",
    arms=paired(*PAIRS),
    across=columns({"DocVQA": "docvqa", "OCRBench": "ocrbench"}),
    budgets=("64",),
    printed_in="mixkv_table1",
    claimed=5.1,
    source="29",
)


@pytest.fixture
def setting(tmp_path: Path):
    with Results(tmp_path / "rows", {}, resume=True) as results:
        yield Setting(
            model="qwen2-vl-7b",
            location="m",
            data=tmp_path,
            results=results,
            limit=1,
            seed=0,
            small=False,
            load=lambda: pytest.fail("no model is needed"),
            profiles=tmp_path,
        )


def summarise(setting: Setting, without: str = ""):
    for name, scores in SCORES.items():
        for task, score in zip(("docvqa", "ocrbench"), scores, strict=True):
            if name != without:
                row = {"task": task, "sample": "0", "spec": f"{name}:budget=64", "score": score}
                setting.results.add(row)
    (table,) = GRID.summarise([setting])
    return table


def test_the_mean_is_over_all_pairs_and_sets(setting):
    snapkv, adakv, total = summarise(setting).lines
    assert [cell.measured for cell in snapkv.cells] == pytest.approx([20, 50, 35])
    assert [cell.measured for cell in adakv.cells] == pytest.approx([0, -20, -10])
    assert total.cells[-1].measured == pytest.approx((20 + 50 + 0 - 20) / 4)
    assert total.cells[-1].paper == 5.1
    assert snapkv.cells[1].paper == pytest.approx(100 * (66.0 - 62.4) / 62.4)  # Table 1


def test_a_gain_that_is_missing_leaves_the_mean_empty(setting):
    *_, total = summarise(setting, without="adakv").lines
    assert total.cells[-1].measured is None
    assert total.cells[-1].note == "2 of 4 gains, 2 pairs"


def test_the_papers_own_figures_have_the_mean_that_is_said():
    trial, figures = EXPERIMENTS["mixkv:text-gain"].trial, printed("mixkv_table1")
    gains = [
        relative(figures[model, base.name, "64"].values[name], paper.values[name])
        for base, more in zip(trial.arms[::2], trial.arms[1::2], strict=True)
        for model in EXPERIMENTS["mixkv:text-gain"].models
        if (paper := figures.get((model, more.name, "64")))
        for name in (column.name for column in trial.across)
    ]
    assert len(gains) == 55
    assert round(sum(gains) / 55, 1) == 4.7
