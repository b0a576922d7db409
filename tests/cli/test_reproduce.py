"""``foveate reproduce`` runs one experiment of each paper on a stand-in, and shows it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate_lab.report.page import page
from foveate_lab.reproduce import EXPERIMENTS, check
from foveate_lab.reproduce.models import MODELS
from foveate_lab.reproduce.stand_in import write
from tests.browser import OpenPage, browser, chromium, open_page, overflow
from tests.reproduce.tiny import stand_in
from tests.zoo.directory import save_llava

__all__ = ["browser", "chromium", "open_page"]

ONE_A_PAPER = ("mixkv:fig3", "prefixkv:fig2", "csp:fig3", "david:table6", "lookm:fig2")
TOGETHER = ("david:table4", "david:table6")  # ask the same samples


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["reproduce", *arguments])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Runs a stand-in of one sample, of a model that takes no time."""
    directory = str(save_llava(tmp_path_factory.mktemp("tiny") / "llava"))

    def run_tiny(*arguments: str) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            stand_in(patch, directory)
            return run(*arguments, "--stand-in", "--limit", "1")

    return run_tiny


@pytest.fixture(scope="module")
def out(tiny: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduced")
    done = tiny(*ONE_A_PAPER, "--out", str(folder))
    assert done.exit_code == 0, done.output
    return folder


def test_cells_stand_beside_the_papers(out):
    found = json.loads((out / "reproduced.json").read_text())
    assert found["stand_in"]
    by_id = {one["id"]: one for one in found["experiments"]}
    assert list(by_id) == list(ONE_A_PAPER)
    (table,) = by_id["david:table6"]["tables"]
    assert "stand-in" in table["shrunk"][0]
    final = table["lines"][1]["cells"]["Final Score"]
    assert table["lines"][1]["source"] == "275"
    assert final["paper"] == 285
    assert final["measured"] is not None
    assert final["difference"] is None
    assert final["note"] == "1 sample"
    assert {line["model"] for line in table["lines"]} == {"stand-in for llava-1.5-7b"}
    assert (final["printed"], final["samples"], final["cost"]) == ("285", 1, False)
    for name in set(ONE_A_PAPER) - {"david:table6"}:
        assert by_id[name]["figures"], name


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_of_a_paper_has_every_table_and_figure(out, open_page: OpenPage, width):
    found = json.loads((out / "reproduced.json").read_text())["experiments"]
    for one in found:
        tables, figures = len(one["tables"]), len(one["figures"])
        with open_page(out / f"{one['id'].partition(':')[0]}.html", width) as page:
            assert page.locator("section").count() == 1
            assert page.locator("table").count() == tables
            assert page.locator("figure > svg[role=img][aria-label]").count() == figures
            assert page.locator("h4 .mark").count() == tables + figures
            assert set(page.locator("h4 .mark").all_inner_texts()) == {"STAND-IN"}
            assert page.locator(".below", has_text="Samples in a cell: ").count() == tables
            assert not overflow(page)


def test_a_stand_in_compares_nothing_and_bears_no_models_name(out):
    for name in ("csp", "david", "lookm", "mixkv", "prefixkv"):
        html = (out / f"{name}.html").read_text()
        html = re.sub(r"(?s)<style>.*?</style>|<svg.*?</svg>", "", html)
        assert "`" not in html
        assert "and the difference" not in html
        assert not re.search(r"<small>[+-][\d.]+</small>", html)
        headings = re.findall(r"(?s)<(?:h4|th)\b.*?</(?:h4|th)>", html)
        named = "|".join(map(re.escape, MODELS))
        assert not re.findall(rf"(?i)(?<!stand-in for )(?:{named})", " ".join(headings))
    assert "beside the paper" not in (out / "reproduced.html").read_text()


def test_what_is_folded_and_counted_is_printed_too(out, open_page: OpenPage):
    with open_page(out / "david.html") as page:
        specs = page.locator(".specs code").first
        assert not specs.is_visible()
        page.emulate_media(media="print")
        assert specs.is_visible()
        assert "h2o:budget=20%" in specs.inner_text()
        assert page.get_by_text("Answers refused: 0.").is_visible()


def test_the_front_leads_to_every_experiment(out, open_page: OpenPage):
    with open_page(out / "reproduced.html") as page:
        links = [one.get_attribute("href") for one in page.locator("li a").all()]
        assert sorted(links) == sorted(f"{one.split(':')[0]}.html#{one}" for one in ONE_A_PAPER)
        assert not overflow(page)
    for link in links:
        path, _, name = link.partition("#")
        assert f'id="{name}"' in (out / path).read_text()


def test_it_goes_on_with_what_is_there(tiny, out):
    (rows,) = out.glob("rows/*/rows.jsonl")
    before = rows.read_bytes()
    done = tiny("david:table6", "--out", str(out / "."))
    assert done.exit_code == 0
    assert rows.read_bytes() == before
    lines = before.splitlines(keepends=True)
    keys = [(json.loads(one)["task"], json.loads(one)["sample"]) for one in lines]
    kept = [one for one in lines if json.loads(one)["task"] != "milebench_s4(set=ALFRED), seen"]
    rows.write_bytes(b"".join(kept))  # without those of lookm:fig2
    assert tiny("lookm:fig2", "--out", str(out)).exit_code == 0
    again = [json.loads(one) for one in rows.read_text().splitlines()]
    assert [(row["task"], row["sample"]) for row in again] == keys
    assert len(kept) == len(lines) - 1


def test_experiments_that_ask_the_same_read_each_prompt_once(tmp_path):
    done = run(*TOGETHER, "--stand-in", "--limit", "1", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    (path,) = tmp_path.glob("rows/*/rows.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["spec"] for row in rows}) == len(rows) == 8
    with_sums = {row["spec"].startswith("h2o"): row["prefill_s"] for row in rows}
    assert len({row["prefill_s"] for row in rows}) == len(with_sums)
    said = (
        r"0 of 8 rows are there. Left: 1 prompt, of about \d+ tokens, 8 answers, 0 profiles.\n"
        r"Time: unknown until the first answers.\n"
        r"(?:[\d.]+ min, \d of 8 rows, .*\n)*"  # a line a minute
        r"[\d.]+ min, 8 of 8 rows\n"
    )
    assert re.fullmatch(said, done.stderr)
    assert "complete, by its manifest" in page(tmp_path)


def test_another_model_and_data_of_ones_own_and_what_is_missing_keeps_nothing_else(tmp_path):
    directory = str(save_llava(tmp_path / "llava"))
    write(tmp_path / "data", 1, ["textvqa"])
    done = run(
        *("csp:table2", "mixkv:fig2", "mixkv:fig3"),
        *("--model", f"qwen2-vl-7b={directory}"),
        *("--data", str(tmp_path / "data")),
        *("--out", str(tmp_path / "out")),
    )
    assert done.exit_code == 3, done.output
    said = done.stderr.splitlines()
    assert any(one.startswith("csp:table2: none of its models is given") for one in said)
    (docvqa,) = [one for one in said if one.startswith("docvqa is left out: ")]
    assert "docvqa' does not exist" in docvqa
    assert said[-1] == "0 answers refused, 1 experiments not run"
    page = (tmp_path / "out" / "mixkv.html").read_text()
    assert page.count("<section") == 2
    assert "STAND-IN" not in page


def test_data_that_is_missing_is_named(tmp_path):
    done = run("csp:table2", "--data", str(tmp_path), "--out", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert f"'{tmp_path / 'milebench'}' does not exist" in done.output


def test_what_there_is_is_listed():
    done = run("--list", "--json")
    found = json.loads(done.stdout)
    assert [one["id"] for one in found["experiments"]] == list(EXPERIMENTS)
    assert len(found["facts"]) == 5
    one = found["experiments"][5]
    assert one["id"] == "mixkv:table1"
    assert any(what.startswith("docvqa/: https://") for what in one["bring"])
    assert "mistral" in run("--list", "mixkv:table1").output
    assert "0.9" in run("csp:table4").output


def test_every_departure_is_listed_with_its_reason():
    listed = " ".join(run("all", "--stand-in", "--limit", "1", "--list").output.split())
    departures = {text for one in EXPERIMENTS.values() for text in one.departs}
    assert departures
    for text in departures:
        assert f"differs: {' '.join(text.split())}" in listed
        assert re.search(r"because|: |\(L\d+", text), text


def test_data_are_checked_without_a_model(tmp_path):
    write(tmp_path, 2, ["ocrbench", "milebench"])
    done = run("--check", str(tmp_path), "--json")
    assert done.exit_code == 3, done.output
    found = json.loads(done.stdout)
    data = {one["task"]: one for one in found["data"]}
    by_id = {one["id"]: one for one in found["experiments"]}
    assert list(by_id) == list(EXPERIMENTS)
    assert by_id["david:table6"]["missing"] == []
    assert data["ocrbench"]["parts"][0] | {"questions": 0} == {
        "name": "",
        "form": "the authors",
        "split": "test",
        "questions": 0,
        "missing": "",
        "published": [1000],
    }
    assert data["ocrbench"]["parts"][0]["questions"] >= 2
    assert " -> " in data["ocrbench"]["first"]
    assert "docvqa' does not exist" in data["docvqa"]["missing"]
    assert data["docvqa"]["address"].startswith("docvqa/: https://")
    assert by_id["david:table6"]["incomplete"] == ["ocrbench"]
    assert by_id["prefixkv:table1"]["unpublished"][0] == "prefixkv_llava-v1.5-7b_0.9.json"
    few = run("david:table6", "--check", str(tmp_path))
    assert few.exit_code == 3
    assert "not as many as published: ocrbench" in " ".join(few.output.split())
    (tmp_path / "milebench" / "ALFRED" / "ALFRED.json").unlink()
    done = run("lookm:fig2", "--check", str(tmp_path))
    assert done.exit_code == 3
    assert "holds no MileBench ALFRED" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--merge", "x"], "give their ids, or all"),
        (["mixkv:fig3", "--workers", "2"], "add --executor ray"),
        (["mixkv:fig3", "--executor", "ray", "--device-map", "auto"], "has one device"),
    ],
)
def test_what_cannot_be_done_together_is_refused(tmp_path, asked, says):
    done = run(*asked, "--out", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert says in " ".join(done.output.replace("│", "").split())
    assert not (tmp_path / "out").exists()


def test_an_unknown_id_is_an_error_that_names_a_near_one():
    done = run("lookm:tabel4")
    assert done.exit_code == 2
    assert "Did you mean 'lookm:table4'?" in done.output


@pytest.mark.slow
def test_all_of_them_run(tmp_path, open_page: OpenPage):
    done = run("all", "--stand-in", "--limit", "2", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    found = json.loads((tmp_path / "reproduced.json").read_text())["experiments"]
    assert [one["id"] for one in found] == list(EXPERIMENTS)
    for one in found:
        assert one["tables"] or one["figures"], one["id"]
    for paper in ("mixkv", "prefixkv", "csp", "david", "lookm"):
        mine = [one for one in found if one["id"].startswith(f"{paper}:")]
        with open_page(tmp_path / f"{paper}.html") as page:
            assert page.locator("section").count() == len(mine)
            assert page.locator("figure > svg").count() == sum(len(one["figures"]) for one in mine)


def test_a_check_says_all_there_only_of_whole_sets_with_their_published_profiles(
    tmp_path, monkeypatch
):
    write(tmp_path, 1, ["mm_vet", "llava_instruct"])
    checked = ("prefixkv:table4", "--check", str(tmp_path))
    sizes = {"mm_vet": (5,), "llava_instruct": (9,)}
    known = {"sizes": sizes, "sources": check.toml("sources")}
    monkeypatch.setattr(check, "toml", known.__getitem__)
    without = run(*checked)
    assert without.exit_code == 3
    assert "lines stay empty without published/" in " ".join(without.output.split())
    folder = tmp_path / "published"
    folder.mkdir()
    for tenth in range(1, 10):
        (folder / f"prefixkv_llava-v1.5-7b_{tenth / 10}.json").write_text("[]")
    assert run(*checked).exit_code == 0
    assert "all there" in run(*checked).output
    sizes["mm_vet"] = (218,)
    assert "5 of 218" in run(*checked).output
    assert run(*checked).exit_code == 3
