"""Scores by what samples are labelled with, and maps of depths and lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foveate_lab.report.heat import heat_maps
from foveate_lab.report.page import page
from foveate_lab.report.splits import split, splits
from tests.browser import OpenPage, overflow
from tests.report.test_page import row, written

LABELS: list[dict[str, Any]] = [
    {"set": "b", "level": 10, "skills": ["reads", "counts"], "all": "x"},
    {"set": "a", "level": 9, "skills": ["reads"], "all": "x"},
    {"set": "a", "level": 9, "skills": [], "all": "x"},
]


def labelled(spec: str = "full", scores: tuple[float | None, ...] = (1, 1, 0)) -> list[Any]:
    return [
        {**row(spec, i, 0), "score": score, "labels": labels}
        for i, (score, labels) in enumerate(zip(scores, LABELS, strict=True))
    ]


def test_each_value_has_its_mean_and_weighs_the_same_in_the_last() -> None:
    by_set = split(labelled(), "set")
    assert (by_set.values, by_set.counts) == (["a", "b"], [2, 1])
    assert by_set.scores == {"full": [0.5, 1.0, 0.75]}  # the mean over samples is 2/3
    by_level = split(labelled(), "level")
    assert by_level.values == ["9", "10"]  # as numbers
    by_skill = split(labelled(), "skills")
    assert (by_skill.values, by_skill.counts) == (["counts", "reads"], [1, 2])
    assert by_skill.scores == {"full": [1.0, 1.0, 1.0]}


def test_rows_without_a_score_or_labels_are_in_no_mean() -> None:
    found = [*labelled(scores=(None, None, 0)), *labelled("random:budget=20%"), row("full", 9, 1)]
    assert split(found, "set").scores == {
        "full": [0.0, None, 0.0],
        "random:budget=20%": [0.5, 1.0, 0.75],
    }
    assert [one.label for one in splits(found)] == ["set", "level", "skills"]  # not "all"
    found[0]["labels"] = None
    assert split(found, "set").counts == [2, 1]


def grid(spec: str) -> list[dict[str, Any]]:
    return [
        {**row(spec, 10 * i + j, 0), "score": float(i > j), "labels": {"length": n, "depth": d}}
        for i, n in enumerate((1000, 2000, 16000))
        for j, d in enumerate((0, 50, 100))
    ]


def test_a_needle_has_a_map_for_every_policy() -> None:
    (figure,) = heat_maps([*grid("full"), *grid("snapkv:budget=20%")])
    for text in ("16000", "depth, %", "snapkv:budget=20%"):
        assert text in figure.svg
    pages = [one | {"labels": {"pages": 8, "place": 33}} for one in grid("full")]
    assert "place, % of the way" in next(heat_maps(pages)).svg
    assert not list(heat_maps(labelled()))
    words = [one | {"labels": {"length": "0-4k", "depth": "5"}} for one in grid("full")]
    assert not list(heat_maps(words))


@pytest.mark.parametrize("width", [1280, 400])
def test_chromium_shows_tables_and_maps(tmp_path: Path, open_page: OpenPage, width: int) -> None:
    found = [*grid("full"), *grid("snapkv:budget=20%")]
    for one in found:
        one["labels"] = {**one["labels"], "set": f"<b>{one['labels']['depth']}"}
    path = written(tmp_path, found) / "report.html"
    path.write_text(page(tmp_path), encoding="utf-8")
    with open_page(path, width=width) as shown:
        assert shown.locator("h3", has_text="Needle in a haystack").count() == 1
        summary = shown.locator("summary", has_text="By set")
        summary.click()
        assert shown.locator("th", has_text="<b>50 (3)").is_visible()
        assert overflow(shown) == []
