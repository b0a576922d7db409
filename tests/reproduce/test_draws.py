"""Answers that the full cache draws at a temperature, and the cells that they fill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foveate.loading.model import Loaded, load
from foveate_lab.eval.keyed_rows import key_of
from foveate_lab.eval.results import Results
from foveate_lab.reproduce import EXPERIMENTS
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.stand_in import write
from foveate_lab.reproduce.trials import Arm, Column, GridTrial
from foveate_lab.reproduce.trials.draws import drawn
from tests.zoo.directory import save_llava

GRID = GridTrial(
    title="t",
    arms=(
        Arm(name="Full cache", spec="full", values={"ROUGE": "ROUGE of two draws"}),
        Arm(name="as released", spec="full", values={"ROUGE": "ROUGE of a draw"}),
        Arm(name="SnapKV", spec="snapkv:budget={B},window=8"),
    ),
    across=(Column(name="ROUGE", tasks=("mm_vet",), value="ROUGE"),),
    budgets=("50%",),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load(str(save_llava(tmp_path_factory.mktemp("llava"))))


@pytest.fixture
def setting(model: Loaded, tmp_path: Path) -> Iterator[Setting]:
    write(tmp_path, 2, ["mm_vet"])
    with Results(tmp_path / "rows", {}, resume=True) as results:
        yield Setting(
            model="m",
            location="m",
            data=tmp_path,
            results=results,
            limit=2,
            seed=0,
            small=True,
            load=lambda: model,
            profiles=tmp_path,
        )


def cells(setting: Setting, temperature: float) -> dict[str, float | None]:
    """Run what is drawn, and return the cells of the table."""
    grid = replace(GRID, temperature=temperature)
    for row in grid.run(setting):
        setting.results.add(row)
    assert not list(grid.run(setting))
    assert {*grid.measured(setting)} <= {*map(key_of, setting.results.rows)}
    (table,) = grid.summarise([setting])
    return {line.method: line.cells[0].measured for line in table.lines}


def test_near_temperature_0_both_draws_are_the_greedy_answer(setting):
    assert cells(setting, 1e-6) == {"Full cache": 1, "as released": 1, "SnapKV": None}


def test_hot_draws_differ_and_do_not_depend_on_what_ran_before(setting):
    hot = cells(setting, 50.0)
    assert hot["Full cache"] < 1
    assert hot["as released"] < 1
    rows = setting.results.rows
    last = max(row["place"] for row in rows)
    (alone,) = (row for row in rows if row["place"] == last)
    with Results(setting.data / "others", {}, resume=True) as results:
        results.add(next(row for row in rows if row["place"] != last))
        again = replace(setting, results=results)
        (row,) = replace(GRID, temperature=50.0).run(again)
    assert row == alone


def test_tokens_are_drawn_by_their_probability(model):
    """Of the fifty likeliest, as the authors' script has it."""
    counts = torch.zeros(60)
    generator = torch.Generator("cpu").manual_seed(0)
    logits = torch.arange(60.0)[None] / 10
    for _ in range(2000):
        (token,) = drawn(model.model, None, logits, 1, 0.5, generator)
        counts[token] += 1
    assert counts[:10].sum() == 0
    expected = (logits[0] / 0.5)[10:].softmax(-1)
    assert (counts[10:] / 2000 - expected).abs().max() < 0.03


@pytest.mark.parametrize("id", ["prefixkv:table1", "prefixkv:table2"])
def test_prefixkvs_uncompressed_rouge_is_of_draws(id):
    trial = EXPERIMENTS[id].trial
    assert trial.temperature == 0.2
    values = {arm.name: dict(arm.values) for arm in trial.arms if arm.spec == "full"}
    assert values == {
        "Full cache": {"ROUGE": "ROUGE of two draws"},
        "Full cache, a draw beside the greedy answer, as released": {"ROUGE": "ROUGE of a draw"},
    }
