"""Tables stand as the papers print them: what is where, in which digits, with which marks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from foveate_lab.reproduce import EXPERIMENTS
from foveate_lab.reproduce.pages import table_content
from foveate_lab.reproduce.registry import PAPERS
from foveate_lab.reproduce.tables.laid_out import LaidRow
from foveate_lab.reproduce.tables.layout import lay_out
from foveate_lab.reproduce.tables.printed import printed
from foveate_lab.reproduce.tables.table import (
    BUDGET_BLOCKS,
    BUDGETS_FIRST,
    METHODS_ACROSS,
    OOM,
    Table,
    TableCell,
    TableLine,
)


def cell(measured, text, **more):
    return TableCell(measured, None if text in ("", "OOM") else float(text), printed=text, **more)


def line(method, budget, one, other, over="", source="9"):
    spec = method.lower() + (":budget={B}" if budget else "")
    specs = ((f"{spec},a=1", "t1"), (f"{spec},a=2", "t2, t3"))
    return TableLine("llava", method, budget, spec, source, (one, other), over, specs)


TABLE = Table(
    "T",
    ("A", "B"),
    (
        line("Full", "", cell(50.04, "50.0", samples=200), cell(1.25, "1.250", samples=9)),
        line("Snap", "64", cell(45, "45.0", samples=200), cell(None, "OOM", remark=OOM)),
        line("Snap", "32", cell(39.0, "39.4", samples=198, refused=2), cell(1, "", samples=9)),
        line("Snap + Mix", "64", cell(47.26, "47.5", samples=200), cell(2.0, "2.000"), "Snap"),
        line(
            "Snap + Mix",
            "32",
            cell(39.0, "40.1", samples=200, delta="+0.9", misprint="the gain is +0.7"),
            cell(1.5, "1.1", samples=9, raised=3, misprint="Table 9 has 1.3"),
            "Snap",
        ),
    ),
    costs=("B",),
)

REFUSED = TableCell(None, 50.0, samples=0, refused=4)


def text(row):
    """A row in words: block, or names and cells, with their spans."""
    if "block" in row:
        return [row["block"]]
    found = []
    for one in row["cells"]:
        said = "/".join(
            filter(None, (one.get("measured"), one.get("paper"), one.get("difference")))
        )
        marks = "".join(filter(None, (one.get("mark"), one.get("wrong"))))
        found.append(f"{one['span']}x " * (one["span"] > 1) + said + f"[{marks}]" * bool(marks))
    return [*row["names"], *found]


def test_budgets_stand_across_and_gains_below_in_the_papers_digits():
    grid = table_content(TABLE)["grid"]
    assert [[(head.text, head.span) for head in row] for row in grid["heads"]] == [
        [("A", 2), ("B", 2)],
        [("64", 1), ("32", 1), ("64", 1), ("32", 1)],
    ]
    assert [text(row) for row in grid["rows"]] == [
        ["llava"],
        ["Full", "2x 50.0/50.0/+0.0", "2x 1.250/1.250/+0.000"],
        ["Snap", "45.0/45.0/+0.0", "39.0/39.4/-0.4[a b]", "OOM/OOM[c]", "1.000"],
        ["+ Mix", "47.3/47.5/-0.2", "39.0/40.1/-1.1", "2.000/2.000/+0.000", "1.5/1.1/+0.4[de]"],
        ["Δ", "+2.3/+2.5", "+0.0/+0.9[f]", "-", "+0.500"],
    ]
    assert grid["rows"][-1]["gain"]


def test_what_is_below_says_samples_refusals_and_every_mark():
    grid = table_content(TABLE)["grid"]
    assert grid["counts"] == [
        "Samples in a cell: A 200; B 9.",
        "Answers refused: 2.",
        "Answers that kept more than was asked: 3.",
        "Cells without a number of ours: 1 of 10.",
    ]
    refused = Table("T", ("A",), (TABLE.lines[0]._replace(cells=(REFUSED,)),))
    assert table_content(refused)["grid"]["counts"][0] == "Answers refused: 4."
    assert table_content(refused)["grid"]["marks"] == [("a", "4 refused")]
    assert grid["marks"] == [
        ("a", "198 samples"),
        ("b", "2 refused"),
        ("c", OOM),
        ("d", "3 kept more than was asked: what is always kept"),
        ("e", "Table 9 has 1.3"),
        ("f", "the gain is +0.7"),
    ]
    assert grid["costs"] == ["B"]


def test_specs_are_whole_with_the_benchmarks_of_each():
    specs = table_content(TABLE)["specs"]
    assert ("Snap", "snap:budget={B},a=2", "t2, t3") in specs
    assert len(specs) == 6
    single = replace(TABLE, lines=TABLE.lines[1:2])
    assert table_content(single)["specs"][0] == ("Snap", "snap:budget=64,a=1", "t1")
    assert table_content(single)["budget"] == "64"


@pytest.mark.parametrize(
    ("layout", "rows"),
    [
        (BUDGET_BLOCKS, [["llava"], ["Full"], ["llava, budget 64"], ["Snap"], ["+ Mix"], ["Δ"]]),
        (BUDGETS_FIRST, [["llava"], ["100%", "Full"], ["64", "Snap"], ["64", "+ Mix"], ["Δ", ""]]),
    ],
)
def test_budgets_stand_where_the_paper_has_them(layout, rows):
    found = table_content(replace(TABLE, layout=layout))["grid"]["rows"]
    names = [[row["block"]] if "block" in row else [*row["names"]] for row in found]
    assert names[: len(rows)] == rows


def test_methods_stand_across_and_what_is_not_printed_aside():
    whole = replace(TABLE, lines=TABLE.lines[:2], layout=METHODS_ACROSS, aside=("A",))
    found = table_content(whole)
    assert [[head.text for head in row] for row in found["grid"]["heads"]] == [["Full", "Snap"]]
    assert [text(row)[0] for row in found["grid"]["rows"]] == ["llava", "B"]
    assert [head.text for head in found["aside"]["heads"][0]] == ["A"]
    assert found["grid"]["counts"][0] == "Samples in a cell: A 200; B 9."


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_cell_of_an_experiment_has_its_place(name, unrun):
    """None hides another, whatever its layout says."""
    one = EXPERIMENTS[name]
    for table in (each for each in one.trial.summarise(unrun(one)) if isinstance(each, Table)):
        columns = [column for column in table.columns if column not in table.aside]
        found = lay_out(table, columns)
        wanted = Counter((*line[:3], column) for line in table.lines for column in columns)
        assert Counter((*piece.line[:3], piece.at["column"]) for piece in found.pieces) == wanted
        width = sum(head.span for head in found.heads[-1])
        for row in found.rows:
            if isinstance(row, LaidRow):
                assert sum(placed.span for placed in row.cells) == width


def test_what_is_known_to_be_misprinted_is_marked():
    averages = {key for key, one in printed("mixkv_table3").items() if "Avg." in one.misprints}
    assert len(averages) == 8
    for (model, *_), one in ((key, printed("mixkv_table3")[key]) for key in averages):
        *sets, _ = one.values.values()
        assert one.misprints["Avg."].text.endswith(f"{sum(sets) / 16:.2f}")
        assert model == "llama-3.1-8b"
    wrong = printed("david_table1")["llava-1.5-7b", "LOOK-M", "20%"]
    assert wrong.texts["Final Score"] == "158"
    assert wrong.misprints["Final Score"].text.endswith("182")
    gain = printed("mixkv_table2")["qwen2.5-vl-7b", "SnapKV + MixKV", "128"].misprints["Average"]
    assert gain.delta == "+7.9"
    oom = printed("prefixkv_table3")["llava-1.5-7b", "624 + 256, batch 48, PrefixKV", "40%"]
    assert oom.texts["s"] == "OOM"
    assert "s" not in oom.values


def test_sections_have_every_experiment_once():
    named = [
        f"{paper}:{name}"
        for paper, reproduced in PAPERS.items()
        for names in reproduced.sections.values()
        for name in names
    ]
    assert sorted(named) == sorted(EXPERIMENTS)
