"""What a paper's arms share, and where they have to differ."""

from __future__ import annotations

import re

import pytest

import foveate
from foveate.compression.composition import name_and_arguments
from foveate_lab.eval.benchmarks.milebench import TASKS
from foveate_lab.reproduce import EXPERIMENTS
from foveate_lab.reproduce.tables.printed import printed
from foveate_lab.reproduce.trials import GridTrial

BUDGETS = EXPERIMENTS["prefixkv:table4"].trial.budgets
PROMPT, DEPTH = 650, 32  # LLaVA-1.5-7B on MM-Vet: an image, a question


def arms(experiment):
    return {arm.name: arm for arm in EXPERIMENTS[experiment].trial.arms}


@pytest.mark.parametrize("budget", BUDGETS)
def test_pyramid_differs_from_the_even_split_wherever_the_papers_row_does(budget):
    """It does at every budget, those at which a layer may be full among them."""
    rows, mine = printed("prefixkv_table4"), arms("prefixkv:table4")
    even, pyramid = (
        rows["llava-1.5-7b", name, budget].values["PPL"]
        for name in ("Same size for each layer", "Pyramid")
    )
    assert even != pyramid
    spec = mine["Pyramid"].spec.replace("{B}", budget)
    tokens = PROMPT * int(budget[:-1]) // 100
    shares = foveate.policy(spec).budget.by_length(DEPTH)(tokens, 2, PROMPT)
    assert sum(shares) == tokens * DEPTH
    assert shares[0] > tokens > shares[-1]
    assert sorted(shares, reverse=True) == list(shares)
    assert max(shares) <= PROMPT


def test_pyramid_is_the_same_in_all_tables_of_prefixkv_as_its_figures_are():
    specs = {arms(f"prefixkv:table{n}")["Pyramid"].spec for n in (1, 2, 4)}
    assert len(specs) == 1
    two, four = printed("prefixkv_table2"), printed("prefixkv_table4")
    for budget in BUDGETS:
        key = ("llava-1.5-7b", "Pyramid", budget)
        assert two[key].values["PPL"] == four[key].values["PPL"]


def test_mm_vet_is_asked_whole_wherever_prefixkv_scores_answers():
    """Its authors' commands ask for 218 samples; 100 is their program's default alone."""
    grids = {
        one.id.partition(":")[2]: grid
        for one in EXPERIMENTS.values()
        if one.of.name == "PrefixKV"
        for grid in getattr(one.trial, "panels", (one.trial,))
        if isinstance(grid, GridTrial) and "mm_vet" in grid.tasks()
    }
    assert {*grids} == {f"table{n}" for n in (2, 4, 5, 6, 8, 9, 10, 11, 12, 13, 17)}
    assert {grid.samples for grid in grids.values()} == {218}


LANGUAGE = ("table14-longbench", "table14-needle", "table15")  # models that only read
APART = {  # what a paper itself sets in two ways
    ("PrefixKV", "Local"): LANGUAGE,
    ("PrefixKV", "H2O"): LANGUAGE,
    ("PrefixKV", "Pyramid"): LANGUAGE,
    ("PrefixKV", "PrefixKV"): (*LANGUAGE, "table3"),  # of no data, so of no profile
    ("PrefixKV", "KIVI"): LANGUAGE,  # its bits are its budget
    # rho is 1 for MathVista, 2 for all else
    ("DAVID", "DAVID"): ("table3", "table5"),
    ("DAVID", "DAVID, as printed above eq. 7"): ("table3",),
    ("DAVID", "DAVID, as printed in Fig. 2"): ("table3",),
}


def test_arms_of_one_name_are_the_same_in_all_experiments_of_a_paper():
    found = {}
    for one in EXPERIMENTS.values():
        for arm in getattr(one.trial, "arms", ()):
            apart = one.id.partition(":")[2] in APART.get((one.of.name, arm.name), ())
            if not apart:
                specs = found.setdefault((one.of.name, arm.name), {})
                specs.setdefault(arm.spec, []).append(one.id)
    assert {key: specs for key, specs in found.items() if len(specs) > 1} == {}


SHARED = {
    "PrefixKV": {"prefixkv": {"distance": 25}},
    "CSP": {"csp": {"recent": 0.5, "group": "mean"}},
    "DAVID": {"david": {"recent": 0.5, "threshold": 0.3, "kernel": 5, "split": "text"}},
    "LOOK-M": {"lookm": {"recent": 0.5}},
}


@pytest.mark.parametrize("paper", SHARED)
def test_a_papers_method_has_its_settings_in_every_arm(paper):
    """All but lookm:fig6, which is about what is recent."""
    ((method, settings),) = SHARED[paper].items()
    checked = 0
    for one in EXPERIMENTS.values():
        for spec in one.trial.specs() if one.of.name == paper and one.id != "lookm:fig6" else ():
            if spec.startswith(f"{method}:"):
                checked += 1
                given = name_and_arguments(
                    re.sub(r"profile=\{\w+\},?", "", spec.replace("{B}", "20%"))
                )[1]
                for name, value in settings.items():
                    default = foveate.METHODS[method].parameters[name].default
                    assert given.get(name, default) in (value, str(value)), (one.id, spec)
    assert checked >= 5


def test_n_softmax_selects_in_every_arm_of_csp_and_decodes_where_its_name_says_so():
    for name, arm in (
        (name, arm)
        for one in EXPERIMENTS.values()
        if one.of.name == "CSP"
        for name, arm in ((arm.name, arm) for arm in getattr(one.trial, "arms", ()))
        if arm.spec.startswith("csp:")
    ):
        policy = foveate.policy(arm.spec.replace("{B}", "20%"))
        score = getattr(policy.score, "of", policy.score)
        assert score.n == (0 if name.endswith(", softmax") else 1)
        assert getattr(policy.attend, "n", 0) == ("while decoding" in name)
    for name in ("table1-7b", "table1-13b", "table2", "table3-internvl", "fig1a", "fig6"):
        assert {"CSP", "CSP, n-softmax while decoding, too"} <= {*arms(f"csp:{name}")}


def test_csp_as_released_has_the_releases_settings_set_by_set():
    released = arms("csp:table1-7b")["CSP, as released"]
    asked = EXPERIMENTS["csp:table1-7b"].trial.tasks()
    found = {}
    for task in asked:
        policy = foveate.policy(released.spec_for(task, "llava-1.5-7b").replace("{B}", "20%"))
        recent = policy.select.recent / 0.5
        found.setdefault((policy.select.cross_ratio, recent), set()).add(task)
    names = {key: {re.sub(r".*=|\)", "", task) for task in tasks} for key, tasks in found.items()}
    assert names.pop((0.5, 1.0)) >= {"milebench_i1", "MovingDirection", "OCR-VQA", "milebench_t2"}
    assert names == {
        (0.0, 1.0): {"ActionPrediction"},
        (0.1, 1.0): {
            "ActionLocalization",
            "ActionSequence",
            "CLEVR-Change",
            "CounterfactualInference",
            "DocVQA",
            "SceneTransition",
        },
        (0.9, 1.0): {"Spot-the-Diff", "MultiModalQA", "WebQA"},
        (0.5, 1.5): {"EgocentricNavigation"},
        (0.5, 0.5): {"SlideVQA"},
    }


@pytest.mark.parametrize(
    "id", ["lookm:table1-7b", "lookm:table6", "lookm:table8", "csp:table1-7b", "csp:table1-13b"]
)
def test_a_table_of_all_of_milebench_asks_all_29_sets(id):
    across = {column.name: column.tasks for column in EXPERIMENTS[id].trial.across}
    assert {re.sub(r".*set=|\)", "", task) for task in across["S-3"]} == {*TASKS["S-3"]}
    asked = set()
    for task in EXPERIMENTS[id].trial.tasks():
        kind, _, chosen = task.removeprefix("milebench_").rstrip(")").partition("(set=")
        asked |= {chosen} if chosen else {*TASKS[f"{kind[0].upper()}-{kind[1]}"]}
    assert len(asked) == 29


@pytest.mark.parametrize(("layers", "released"), [(28, 139.0), (32, 142.5)])
@pytest.mark.parametrize("id", ["mixkv:table1", "mixkv:table2", "mixkv:fig4"])
def test_mixkvs_pyramid_is_the_releases_beside_an_exact_one(id, layers, released):
    """The authors' cluster: the largest first, the step between layers rounded down."""
    found = arms(id)
    for more in ("", " + MixKV"):
        for name, kept in (("PyramidKV", released), ("PyramidKV, exact budget", 128)):
            policy = foveate.policy(found[name + more].spec.replace("{B}", "128"))
            counts = policy.budget.by_length(layers)(128, 32, 2000)
            assert sum(counts) / layers == kept
    assert (counts[0], counts[-1]) == (220, 36)


@pytest.mark.parametrize(
    ("ids", "name", "settings"),
    [
        (("table1-7b", "table1-13b"), "LOOK-M (TP + P-Merge), as released", "protect_text=true"),
        (("table2", "table3", "table6"), "LOOK-M, as released", "protect_text=true"),
        (("table7-mobilevlm", "table7-internvl"), "LOOK-M, as released", "protect_text=true"),
        (("table8",), "with text prior, as released", "protect_text=true"),
        (
            ("table1", "table2", "table3", "table4"),
            "DAVID, as printed above eq. 7",
            "rule=delta_above",
        ),
        (
            ("table1", "table2", "table3", "table4"),
            "DAVID, as printed in Fig. 2",
            "rule=theta_below",
        ),
        (
            ("table1", "table2", "table3", "table6", "table7"),
            "SnapKV + MixKV, equations as printed",
            "diversity_scale=importance,normalise_over=all,clamped=false",
        ),
        (("table1", "table2"), "PrefixKV, distance as printed", "counted_from=newest"),
        (
            ("csp:table1-7b", "csp:table1-13b"),
            "LOOK-M (TP + P-Merge), as released",
            "protect_text=true",
        ),
    ],
)
def test_what_is_released_or_printed_otherwise_has_a_line_without_the_papers_figures(
    ids, name, settings
):
    """It differs in these settings alone from the line that has the figures."""
    papers = {
        "LOOK": "lookm",
        "with": "lookm",
        "DAVI": "david",
        "Snap": "mixkv",
        "Pref": "prefixkv",
    }
    base = name.partition(", ")[0]
    for id in ids:
        experiment = id if ":" in id else f"{papers[name[:4]]}:{id}"
        found = arms(experiment)
        other = found[name].spec
        assert settings in other
        assert sorted(re.split("[:,]", found[base].spec)) == sorted(
            one for one in re.split("[:,]", other) if one not in settings.split(",")
        )
        lines = printed(EXPERIMENTS[experiment].trial.figures)
        assert base in {method for _, method, _ in lines}
        assert name not in {method for _, method, _ in lines}


def test_all_text_is_kept_as_released_at_every_budget_of_a_table():
    for id in ("table1-7b", "table2", "table6", "table8"):
        grid = EXPERIMENTS[f"lookm:{id}"].trial
        (released,) = (arm for arm in grid.arms if arm.name.endswith("as released"))
        assert {*grid.budgets} <= {*released.raised}
