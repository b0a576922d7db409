"""The chart of a sweep: every method is named beside it, and the page's colours are its own."""

import re

import pytest

from foveate.pictures.strips import PALETTE
from foveate_lab.eval.summary import FULL, Estimate, SummaryCell
from foveate_lab.report.charts import MARKERS, against_bytes, axes, svg

from .hostile import SPECS

SCORE = Estimate(0.5, 0.4, 0.6, 10)


def cell(spec, share):
    return SummaryCell(
        task="t",
        spec=spec,
        score=SCORE,
        difference=None,
        bytes_share=share,
        kl=0.0,
        nll=0.0,
        agreement=SCORE,
        rouge=None,
        perplexity=None,
        compress_s=0.0,
        decode_s_per_token=None,
    )


def drawn(specs):
    return against_bytes([cell(FULL, 1.0), *(cell(spec, 0.2) for spec in specs)], "score")


def test_every_line_is_named_in_full_and_no_two_look_alike():
    names = [f"method{i}" for i in range(60)]
    key = drawn(names).key
    assert [entry.name for entry in key] == [*names, "full cache", "Pareto front"]
    assert len({entry.sign for entry in key}) == 62
    long = next(entry.name for entry in drawn(SPECS).key)
    assert len(long) > 150
    assert long.endswith("attend=softmax_n()")


def test_files_are_named_without_folders_where_that_tells_them_apart():
    specs = [f"headkv:budget=20%,profile={path}.json" for path in ("a/b/one", "a/two", "b/two")]
    assert [entry.name for entry in drawn(specs).key] == [
        "headkv:profile=one.json",
        "headkv:profile=a/two.json",
        "headkv:profile=b/two.json",
        "full cache",
        "Pareto front",
    ]


def test_a_sign_has_the_colour_and_the_dashes_of_its_line():
    chart = drawn([f"method{i}" for i in range(12)])
    for place, entry in enumerate(chart.key[:-2]):
        colour = PALETTE[place % 10]
        assert f'stroke="{colour}"' in entry.sign
        assert f"stroke: {colour}" in chart.svg
    dashed = ['dasharray=""' not in entry.sign for entry in chart.key]
    assert dashed == [False] * 10 + [True] * 3 + [False]
    assert len(re.findall("stroke-dasharray: [^;]+", chart.svg)) >= 3
    outlines = {re.findall(' d="(.*?)"', entry.sign)[1] for entry in chart.key[:-2]}
    assert len(outlines) == len(MARKERS)


@pytest.mark.parametrize("text", ["$a$_{b", "$\\frac{$", "日本語 <b> & \\$", "m\u1d49 😀"])
def test_text_that_looks_like_a_formula_stays_text(text):
    figure, axis = axes()
    axis.set(title=text, xlabel=text)
    axis.plot([1, 2], label=text)
    axis.legend()
    shown = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert svg(figure).count(f">{shown}</text>") == 3


def test_axes_and_text_are_of_the_colour_of_the_page():
    chart = drawn(["snapkv", "h2o"]).svg
    assert "#000000" not in chart
    assert 'fill="currentColor"' in chart
    assert "stroke: currentColor" in chart
