"""A report says what the rows say, in one file that needs nothing else."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate.errors import InvalidInput
from foveate_lab.eval.summary import cells, estimate, mean_difference
from foveate_lab.report.page import page
from tests.browser import OpenPage, overflow

CONFIGURATION = {
    "schema": "foveate-results-1",
    "model": "tiny",
    "tasks": ["document"],
    "specs": [],
    "protocol": "query-aware",
    "limit": 4,
    "seed": 0,
    "versions": {"foveate": "0.1.0"},
}
SCORES = {
    "full": [1, 1, 1, 0],
    "oracle:budget=20%": [1, 1, 1, 0],
    "snapkv:budget=20%": [1, 1, 0, 0],
    "snapkv:budget=10%": [1, 0, 0, 0],
    "random:budget=20%": [0, 0, 0, 0],
}


def row(spec: str, sample: int, score: float, task: str = "document") -> dict[str, Any]:
    share = 100 if spec == "full" else int(spec.split("=")[1].strip("%"))
    return {
        "task": task,
        "sample": str(sample),
        "spec": spec,
        "prediction": "x",
        "answers": ["x"],
        "score": score,
        "kv_bytes": share,
        "kv_bytes_full": 100,
        "kl": 0.5,
        "nll": 1.0,
        "agreement": 0.75,
        "compress_s": 0.01,
        "decode_s_per_token": 0.05 if not sample else None,
    }


def rows(**scores: list[float]) -> list[dict[str, Any]]:
    return [
        row(spec, i, score)
        for spec, each in (scores or SCORES).items()
        for i, score in enumerate(each)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(tmp_path, rows())


def written(folder: Path, found: list[dict[str, Any]], **configuration: Any) -> Path:
    (folder / "run.json").write_text(json.dumps({**CONFIGURATION, **configuration}))
    (folder / "rows.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))
    return folder


def test_means_and_differences_are_of_the_same_samples() -> None:
    found = {cell.spec: cell for cell in cells(rows())}
    snapkv = found["snapkv:budget=20%"]
    assert (snapkv.score.mean, snapkv.difference.mean, snapkv.bytes_share) == (0.5, -0.25, 0.2)
    assert snapkv.decode_s_per_token == 0.05
    assert snapkv.agreement.mean == 0.75
    # samples that the full cache has not answered yet are in no difference
    partly = [one for one in rows() if (one["spec"], one["sample"]) != ("full", "0")]
    again = {cell.spec: cell for cell in cells(partly)}
    assert again["snapkv:budget=20%"].difference.mean == pytest.approx(-1 / 3)
    alone = [one for one in rows() if one["spec"] != "full"]
    assert {cell.difference for cell in cells(alone)} == {None}


def refused(spec: str, sample: int) -> dict[str, Any]:
    error = {"type": "InvalidBudget", "message": f"too <small> for {sample}"}
    return {"task": "document", "sample": str(sample), "spec": spec, "error": error}


def test_what_was_refused_is_in_no_mean_and_is_shown(tmp_path: Path) -> None:
    spec = "snapkv:budget=20%"
    found = [*rows(), refused(spec, 8), refused(spec, 9), refused("knorm:budget=5%", 8)]
    by_spec = {cell.spec: cell for cell in cells(found)}
    before = {cell.spec: cell for cell in cells(rows())}[spec]
    assert by_spec[spec] == replace(before, failed=2)
    assert (by_spec["knorm:budget=5%"].answered, by_spec["knorm:budget=5%"].score) == (0, None)
    text = page(written(tmp_path, found))
    assert "4 of 6" in text
    assert "0 of 1" in text
    assert "2 of the samples, first <bdi>8</bdi>: <bdi>InvalidBudget: too &lt;small&gt;" in text
    nothing = page(written(tmp_path, [refused("full", 0), refused(spec, 0)]))
    assert nothing.count("0 of 1") == 2
    assert "needs a judge" not in nothing


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan, None])
@pytest.mark.parametrize("name", ["score", "kl", "nll", "agreement", "kv_bytes", "compress_s"])
def test_a_number_that_is_not_finite_is_in_no_mean(tmp_path: Path, name: str, odd: Any) -> None:
    spec, found = "snapkv:budget=20%", rows()
    place = next(i for i, one in enumerate(found) if (one["spec"], one["sample"]) == (spec, "3"))
    found[place] |= {name: odd, "feature_error": [odd, 0.5]}
    cell = {cell.spec: cell for cell in cells(found)}[spec]
    means = (cell.kl, cell.nll, cell.bytes_share, cell.agreement.mean, cell.compress_s)
    assert means == pytest.approx((0.5, 1.0, 0.2, 0.75, 0.01))
    assert cell.score.count == 4 - (name == "score")
    assert cell.odd == (name in ("kl", "nll", "kv_bytes"))
    assert ("no finite number" in page(written(tmp_path, found))) == bool(cell.odd)


def test_a_page_of_rows_without_bytes_is_made(tmp_path: Path) -> None:
    none = [one | {"kv_bytes_full": 0, "feature_error": [0.1, 0.2]} for one in rows()]
    assert all(math.isnan(cell.bytes_share) for cell in cells(none))
    assert "50.0 (" in page(written(tmp_path, none))


def test_lines_that_are_damaged_are_counted(folder: Path) -> None:
    with (folder / "rows.jsonl").open("a") as file:
        file.write("{\n[]\n")
    assert "2 damaged lines" in page(folder)
    assert not (folder / "rows.damaged.jsonl").exists()


def test_intervals_hold_what_they_should() -> None:
    wilson = estimate([1.0] * 8 + [0.0] * 2)  # by hand: (0.490, 0.943)
    assert (wilson.low, wilson.high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    certain = estimate([1.0] * 50)
    assert certain.high == 1.0
    assert 0.9 < certain.low < 1.0
    several = estimate([0.0, 0.5, 0.7, 1.0, 0.9, 0.3] * 20)
    assert several.low < several.mean < several.high
    error = 0.335 / 120**0.5  # standard deviation over the root of the count
    assert several.high - several.low == pytest.approx(2 * 1.96 * error, rel=0.15)
    assert estimate([0.3, 0.8, 0.1] * 9) == estimate([0.3, 0.8, 0.1] * 9)
    two = estimate([0.69, 0.71])  # Student's t with one degree of freedom: 0.70 +- 12.706 * 0.01
    assert (two.low, two.high) == pytest.approx((0.573, 0.827), abs=1e-3)


def test_a_difference_may_go_either_way_though_no_sample_has_changed() -> None:
    for count in (3, 50):
        none = mean_difference([0.0] * count)
        # Wilson's score interval for none of n ends at z^2 / (n + z^2)
        share = 1.959964**2 / (count + 1.959964**2)
        assert (none.mean, none.low, none.high) == pytest.approx((0, -share, share), abs=1e-6)
        every = mean_difference([-1.0] * count)
        assert (every.low, every.high) == pytest.approx((-1, share - 1), abs=1e-6)
    # one of fifty has changed: no proof of a difference
    assert mean_difference([1.0] + [0.0] * 49).low == 0
    cell = {cell.spec: cell for cell in cells(rows())}["oracle:budget=20%"]
    assert cell.difference is not None
    assert -cell.difference.low == cell.difference.high > 0


class Page(HTMLParser):
    """The tags of a page, what they load, and its table cells."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.best = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]
        self.best += ("class", "best") in attrs


def test_the_page_holds_the_figures_and_loads_nothing(folder: Path) -> None:
    text = page(folder)
    found = Page(text)
    assert all(link.startswith("#") for link in found.loads)
    assert "script" not in found.tags
    assert "@import" not in text
    assert "50.0 (" in text
    assert "-25.0 (" in text
    assert found.tags.count("figure") == 1
    assert found.best == 2  # snapkv at each of its budgets; the oracle is no method
    assert "cannot tell methods apart" in text  # four samples are too few


ANALYSES = {
    "redundancy": [[0.2, 0.9], [0.4, 0.5], [0.1, 0.3]],
    "lorenz": [[0.3, 0.8, 1.0], [0.5, 0.9, 1.0], [0.6, 0.9, 1.0]],
    "gini": [0.5, 0.7, 0.8],
    "ncar": [0.9, 0.5, 0.4],
    "received": [[2.0, 0.5], [1.5, 0.7], [1.2, 0.9]],
    "within": [[0.5, 0.25, 0.25]] * 3,
    "across": [[0.75, 0.25, 0.0]] * 3,
    "divergence": [0.1, 0.2, 0.15],
    "keys": [[float(i), float(i * i % 7)] for i in range(20)],
}


def test_what_the_papers_look_at_is_drawn_where_it_was_measured(tmp_path: Path) -> None:
    found = rows()
    for one in found:
        if one["sample"] == "0":
            full = one["spec"] == "full"
            one.update({"analyses": dict(ANALYSES)} if full else {"kept_places": [0, 3, 7, 19]})
        one["feature_error"] = [] if one["spec"] == "full" else [0.1, 0.2, 0.3]
    text = page(written(tmp_path, found))
    titles = re.findall(r"<h3>(.*?)</h3>", text)
    assert len(titles) == len(set(titles)) == 9
    assert Page(text).tags.count("figure") == 1 + len(titles)
    assert "KV head" in text
    assert "snapkv, 10 % of the bytes" in text  # the smallest budget of each method
    assert "snapkv, 20 % of the bytes" not in text
    # without images there is nothing to compare with text
    for name in ("ncar", "received", "within", "across", "divergence"):
        for one in found:
            one.get("analyses", {}).pop(name, None)
    assert len(re.findall("<h3>", page(written(tmp_path, found)))) == 5


def test_what_nothing_scored_has_no_score_but_what_differs_from_the_full_cache(
    tmp_path: Path,
) -> None:
    told = [(1.0, 30), (2.0, 10)] * 10
    found = [
        {**one, "score": None, "rouge_full": 0.4, "reference_nll": nll, "reference_tokens": n}
        for one, (nll, n) in zip(rows(), told, strict=True)
    ]
    snapkv = {cell.spec: cell for cell in cells(found)}["snapkv:budget=20%"]
    assert snapkv.score is snapkv.difference is None
    assert snapkv.rouge == pytest.approx(0.4)
    # two samples of each kind: e to the mean over tokens, not over samples
    assert snapkv.perplexity == pytest.approx(math.exp((1.0 * 60 + 2.0 * 20) / 80))
    text = page(written(tmp_path, found))
    assert "needs a judge" in text
    assert "same tokens, %" in text
    assert "<td>40 %</td><td>3.49</td>" in text
    assert Page(text).best == 0


def test_text_from_data_is_escaped(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    found = [{**one, "task": evil} for one in rows()]
    text = page(written(tmp_path, found, model=evil, versions={evil: evil}))
    assert "script" not in Page(text).tags
    assert "&lt;script&gt;" in text


def test_a_budget_at_which_methods_cannot_be_told_apart_is_named(tmp_path: Path) -> None:
    many = {
        "full": [1] * 40,
        "oracle:budget=20%": [1] * 38 + [0] * 2,
        "random:budget=20%": [1] * 5 + [0] * 35,
    }
    text = page(written(tmp_path, rows(**many)))
    assert "cannot tell methods apart" not in text
    few = {"oracle:budget=5%": [0] * 40, "random:budget=5%": [0] * 40}
    text = page(written(tmp_path, rows(**many, **few)))
    assert "At <bdi>5%</bdi>, keeping what shows the answer" in text


def test_the_command_writes_the_file(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "a report.html"
    for arguments, path in (([], folder / "report.html"), (["-o", str(out)], out)):
        result = CliRunner().invoke(app, ["report", str(folder), *arguments])
        assert result.exit_code == 0, (result.stderr, result.exception)
        assert result.stdout.startswith(f"{path}: ")
        assert path.read_text().startswith("<!doctype html>")


def test_a_folder_without_results_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="holds no results"):
        page(tmp_path)
    with pytest.raises(InvalidInput, match="holds no answers yet"):
        page(written(tmp_path, []))


def test_every_spec_of_the_table_is_in_it(folder: Path) -> None:
    codes = re.findall(r"<code>([^<]+)</code>", page(folder))
    assert codes == 2 * list(SCORES)  # what it costs in answers, and in memory and time


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "light"), (400, "dark")])
def test_chromium_shows_it_in_peace_at_any_width(
    folder: Path, open_page: OpenPage, width: int, scheme: str
) -> None:
    path = folder / "report.html"
    path.write_text(page(folder), encoding="utf-8")
    with open_page(path, width=width, scheme=scheme) as shown:
        assert shown.locator("h1").inner_text() == "What compression costs tiny"
        assert shown.locator("tbody tr").count() == 2 * len(SCORES)
        chart = shown.locator("figure > svg").bounding_box()
        assert chart is not None
        assert width / 2 < chart["width"] < width
        assert overflow(shown) == []


def test_a_policy_has_its_line_and_files_have_no_folders(
    tmp_path: Path, open_page: OpenPage
) -> None:
    spec = "recommended:budget=20%,profile=/data/{}/recommended.safetensors"
    found = [row("full", 0, 1), {**row("full", 0, 1), "spec": spec.format("a")}]
    path = written(tmp_path, found) / "report.html"
    path.write_text(page(tmp_path), encoding="utf-8")
    with open_page(path) as shown:
        codes = shown.locator("td:first-child code").all()
        assert codes[1].inner_text() == "recommended:budget=20%,profile=recommended.safetensors"
        assert len({(code.bounding_box() or {})["height"] for code in codes}) == 1
    text = page(written(tmp_path, [*found, {**found[1], "spec": spec.format("b")}]))
    assert "profile=a/recommended" in text
    assert "/data/" not in text
