"""Figures that the papers draw of scores and costs are drawn, with what the paper says beside."""

from __future__ import annotations

from dataclasses import replace

import pytest

from foveate_lab.report.analyses import Figure
from foveate_lab.report.charts import described
from foveate_lab.reproduce import EXPERIMENTS
from foveate_lab.reproduce.tables.plots import Plot, plot_table
from foveate_lab.reproduce.tables.table import Table, TableCell, TableLine

DRAWN = (
    *("csp:fig1a", "csp:fig4", "csp:fig5", "csp:fig6", "david:fig3"),
    *("lookm:fig5", "lookm:fig6", "mixkv:fig4", "mixkv:fig6"),
)


def lines(numbers):
    return tuple(
        TableLine("m", method, budget, spec, "", (TableCell(*cell), TableCell(None, None)))
        for method, budget, spec, cell in numbers
    )


BY_BUDGET = Table(
    "Score",
    ("A", "B"),
    lines(
        (
            ("Full", "", "full", (80, 81)),
            ("SnapKV", "10%", "snapkv", (20, None)),
            ("SnapKV", "20%", "snapkv", (60, 58.5)),
            ("CSP <x>", "10%", "csp:cross_ratio=0.1", (30, None)),
            ("CSP <x>", "20%", "csp:cross_ratio=0.9", (None, None)),
        )
    ),
)

UNKNOWN = tuple(
    line._replace(cells=tuple(cell._replace(paper=None) for cell in line.cells))
    for line in BY_BUDGET.lines
)


@pytest.mark.parametrize("name", DRAWN)
def test_it_is_drawn_beside_its_table_also_before_anything_was_run(name, unrun):
    one = EXPERIMENTS[name]
    table, figure = one.trial.summarise(unrun(one))
    assert isinstance(table, Table)
    assert isinstance(figure, Figure)
    assert figure.title == table.title
    assert "<svg" in figure.svg


def test_no_experiment_that_is_a_figure_is_a_table_alone():
    for name, one in EXPERIMENTS.items():
        if ":fig" in name and hasattr(one.trial, "plot"):
            assert one.trial.plot, name


def test_lines_have_what_was_measured_joined_and_the_papers_hollow():
    figure = plot_table(Plot("lines", columns=("A",)), BY_BUDGET)
    assert [entry.name for entry in figure.key] == ["SnapKV", "CSP <x>", "full cache"]
    assert "Hollow marks" in figure.caption
    alone = plot_table(Plot("lines", columns=("A",)), replace(BY_BUDGET, lines=UNKNOWN))
    assert "Hollow marks" not in alone.caption
    assert figure.svg.count("<use") == alone.svg.count("<use") + 1  # SnapKV's 58.5
    nothing = plot_table(Plot("lines", columns=("B",)), BY_BUDGET)
    assert nothing.svg.count("<use") < alone.svg.count("<use")


def test_bars_are_named_by_their_lines():
    figure = plot_table(Plot("bars", columns=("A",)), BY_BUDGET)
    assert "SnapKV 20%" in figure.svg
    assert "CSP &lt;x&gt; 10%" in figure.svg


def test_the_text_in_a_drawings_place_is_escaped():
    found = described('<svg fill="currentColor"></svg>', 'a "quote" & <more>')
    assert found.startswith('<svg role="img" aria-label="a &quot;quote&quot; &amp; &lt;more&gt;" ')
