"""What a paper's arms share, and where they have to differ."""

from __future__ import annotations

import pytest

import foveate
from foveate.reproduce import EXPERIMENTS
from foveate.reproduce.papers.prefixkv.shared import BUDGETS
from foveate.reproduce.printed import printed

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
