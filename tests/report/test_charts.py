"""The chart of a sweep: every method is named where it can be read."""

import re

from foveate.report.charts import against_bytes
from foveate.report.summary import FULL, Cell, Estimate

SCORE = Estimate(0.5, 0.4, 0.6, 10)


def cell(spec, share):
    return Cell(task="t", spec=spec, score=SCORE, difference=None, bytes_share=share, kl=0.0,
                nll=0.0, agreement=SCORE, rouge=None, perplexity=None, compress_s=0.0,
                decode_s_per_token=None)  # fmt: skip


def drawn(names):
    return against_bytes([cell(FULL, 1.0), *(cell(name, 0.2) for name in names)], "score")


def places(chart, names):
    """Where on the page each name starts, across and down."""
    found = [re.search(r'x="([\d.]+)" y="([\d.]+)"[^>]*>' + name + "<", chart) for name in names]
    return [(float(one[1]), float(one[2])) for one in found]


def test_short_names_stand_in_four_columns():
    names = [f"method{i}" for i in range(7)]
    across = {x for x, _ in places(drawn(names), [*names, "full cache"])}
    assert len(across) == 4


def test_long_names_stand_in_few_columns_inside_the_page():
    folder = "profile=some/folder/of/mine/"
    given = [f"method{i}:budget=20%,{folder}a_long_name_of_a_profile.json" for i in range(12)]
    chart = drawn(given)
    assert "some/folder" not in chart
    names = [f"method{i}:profile=a_long_name_of_a_profile.json" for i in range(12)]
    width, height = (
        float(x) for x in re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', chart).groups()
    )
    found = places(chart, names)
    assert len({x for x, _ in found}) == 2
    assert all(x > 0 and x + 4.4 * len(names[0]) < width and y < height for x, y in found)


def test_the_figure_grows_by_its_names():
    few, many = (re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', drawn([f"m{i}" for i in range(n)]))
                 for n in (5, 50))  # fmt: skip
    assert float(many[1]) > float(few[1]) + 100
