"""The registry holds all experiments, and each says what it runs and what its paper leaves open."""

from __future__ import annotations

import re
from collections import Counter

import pytest

import foveate
from foveate.errors import InvalidInput
from foveate_lab.eval.benchmarks import BENCHMARKS
from foveate_lab.reproduce import EXPERIMENTS, FACTS, find_experiments
from foveate_lab.reproduce.experiment import Trial
from foveate_lab.reproduce.registry import list_requirements
from foveate_lab.reproduce.setting import folder_of
from foveate_lab.reproduce.tables.printed import printed
from foveate_lab.reproduce.trials import GridTrial, Panels, Probe, ThroughputTrial

IDS = """
mixkv: fig1a fig1b fig2 fig3 fig7 table1 table2 table3 table4-importance table4-mixing fig4 fig6
    text-gain text-weights-cost fig5 table5-longbench table5-loogle table6 table7
prefixkv: fig2 table1 table2 table3 table4 table5 fig4 table6 table7 table8 table9 table10 table11
    table12 fig5 table13 table14-longbench table14-needle table15 text-kivi-combo table16 table17
    fig6
csp: fig1a fig1b fig1c fig3 table1-7b table1-13b fig4 table2 fig5 fig6 table3-internvl
    table3-mobilevlm fig7 fig8
david: fig1b fig1c table1 table2 table3 table4 fig3 table5 table6 table7
lookm: fig2 table1-7b table1-13b table2 table3 fig5 fig6 table4 table6 table7-mobilevlm
    table7-internvl table8
"""


def trials(kind):
    """Of that kind, each with its experiment."""
    for one in EXPERIMENTS.values():
        each = one.trial.panels if isinstance(one.trial, Panels) else (one.trial,)
        yield from ((one, trial) for trial in each if isinstance(trial, kind))


GRIDS = [(one, grid) for one, grid in trials(GridTrial) if printed(grid.figures)]


def test_every_table_and_figure_is_there():
    wanted = [
        f"{paper}:{name}"
        for paper, names in re.findall(r"(\w+):((?: +\S+(?=\s)|\n(?=    ))+)", IDS)
        for name in names.split()
    ]
    assert len(wanted) == 78
    assert sorted(EXPERIMENTS) == sorted(wanted)
    assert sorted(FACTS) == [
        "csp:table4",
        "csp:table5",
        "csp:theory-kl",
        "lookm:table5",
        "prefixkv:tables18-22",
    ]


def test_states_follow_from_what_is_open():
    states = Counter(one.state for one in EXPERIMENTS.values())
    assert states["as the paper"] + states["as far as the paper says"] >= 66
    for one in EXPERIMENTS.values():
        assert one.state != "as the paper" or not (one.unstated or one.departs or one.cannot)
        assert all(open_.what and open_.choice for open_ in one.unstated)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_what_it_runs_exists(name):
    one = EXPERIMENTS[name]
    assert list_requirements(one)
    for task in one.trial.tasks():
        assert task.partition("(")[0] in BENCHMARKS
    for spec in one.trial.specs():
        if "profile={" not in spec:
            assert foveate.policy(spec.replace("{B}", "50%"))
        for profile in re.findall(r"profile=\{(\w+)\}", spec):
            assert profile in one.calibrations


def test_arguments_of_single_benchmarks_are_taken():
    arms = [arm for _, grid in GRIDS for arm in grid.arms if arm.also]
    assert arms
    for arm in arms:
        for task, models in arm.also.items():
            for model in models:
                assert foveate.policy(arm.spec_for(task, model).replace("{B}", "20%"))


def test_calibrations_of_one_name_are_the_same_everywhere():
    found = {}
    for one in EXPERIMENTS.values():
        for name, calibration in one.calibrations.items():
            assert found.setdefault(name, calibration) == calibration


def test_measures_of_one_name_measure_the_same():
    """Rows are found by it; what only drawing needs may differ."""
    drawn, found = {"by_modality", "spread", "steps"}, {}
    for measure in (probe.measure for _, probe in trials(Probe)):
        measured = {k: v for k, v in vars(measure).items() if k not in drawn}
        assert found.setdefault(measure.name, (type(measure), measured)) == (
            type(measure),
            measured,
        )
    assert len(found) == 9


@pytest.mark.parametrize("name", [one for one in EXPERIMENTS if one.startswith("mixkv:table")])
def test_window_kernel_and_pooling_stand_in_every_spec_of_a_table(name):
    for spec in EXPERIMENTS[name].trial.specs():
        if spec != "full":
            assert "window=32,kernel=5,pool=avg" in spec


@pytest.mark.parametrize(("one", "grid"), GRIDS, ids=[one.id for one, _ in GRIDS])
def test_every_printed_figure_has_its_cell(one, grid):
    figures = printed(grid.figures)
    lines = {
        (model, arm.name, budget) for model in one.models for arm, budget in grid._lines(model)
    }
    assert set(figures) <= lines
    columns = {column.name for column in grid.across} | {grid.average}
    values = {column for one in figures.values() for column in one.values}
    assert values - columns <= {"steps"}  # of prefixkv:table10, which the search tells


def test_an_unknown_id_names_those_that_are_near():
    with pytest.raises(InvalidInput, match="Did you mean 'mixkv:table1'"):
        find_experiments(["mixkv:tabel1"])
    with pytest.raises(InvalidInput, match="facts"):
        find_experiments(["csp:table4"])
    assert [one.id for one in find_experiments(["david", "david:fig3"])] == [
        one for one in EXPERIMENTS if one.startswith("david:")
    ]


def test_folders_are_named_by_benchmarks():
    assert folder_of("milebench_s4(set=ALFRED)") == "milebench"
    assert folder_of("needle_grid(lengths=1000)") == "needle"
    assert folder_of("longbench_repobench-p") == "longbench"
    assert folder_of("screenspot_v2") == "screenspot_v2"


def test_only_roco_at_one_percent_and_what_keeps_all_text_are_raised_as_tables_ask_for_it():
    found = {}
    for _, grid in GRIDS:
        for arm in grid.arms:
            budgets = {*arm.raised} & {*grid.budgets}
            found |= {arm.spec.replace("{B}", one): arm.name for one in budgets}
    assert found.pop("roco:budget=1%,recent=0.5") == "RoCo"
    for spec, name in found.items():
        assert spec.startswith("lookm:")
        assert spec.endswith("protect_text=true")
        assert name.endswith(", as released")


def test_models_are_said_once_and_all_that_a_trial_names_are_the_experiments():
    for one, trial in trials(Trial):
        assert not hasattr(trial, "models")
        named = {model for arm in getattr(trial, "arms", ()) for model in arm.models}
        assert named | {*getattr(trial, "given", ())} <= {*one.models}, one.id
    batched = [
        (one, {batch.model for batch in each.batches}) for one, each in trials(ThroughputTrial)
    ]
    assert all(models == {*one.models} for one, models in batched)


def test_the_paper_is_the_methods_own():
    for one in (*EXPERIMENTS.values(), *FACTS.values()):
        assert one.of.paper is foveate.METHODS[one.id.partition(":")[0]].paper


def test_notes_on_a_benchmark_stand_where_it_is_read():
    of_mm_vet = {
        "prefixkv:table2": True,
        "prefixkv:table13": True,
        "prefixkv:table14-longbench": False,
        "prefixkv:table14-needle": False,
        "prefixkv:table15": False,
        "prefixkv:text-kivi-combo": False,
    }
    for id, stands in of_mm_vet.items():
        notes = [f"{one.what}: {one.choice}" for one in EXPERIMENTS[id].unstated]
        assert any("MM-Vet" in note for note in notes) == stands, id
        assert any("1,024 tokens" in note for note in notes) == stands, id


@pytest.mark.parametrize("id", ["csp:fig7", "csp:fig8"])
def test_csps_distributions_are_of_eight_sets_and_the_guess_is_open(id):
    """The text names five; which the others are is said to be a choice."""
    one = EXPERIMENTS[id]
    sets = {re.sub(r".*set=|\)", "", task) for task in one.trial.tasks()}
    assert len(sets) == 8
    assert sets > {
        "CLEVR-Change",
        "CounterfactualInference",
        "DocVQA",
        "EgocentricNavigation",
        "ActionPrediction",
    }
    assert any("eight sets" in point.what for point in one.unstated)
