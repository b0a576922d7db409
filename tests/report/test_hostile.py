"""Pages in Chromium that hold what nobody should have put in: they stay whole, and can be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page

from foveate.pictures.lens import compared
from foveate.pictures.lens.choices import Choice, LensPrompt
from foveate.pictures.lens.page import Word, page_data
from foveate.pictures.lens.page import page as lens_page
from foveate_lab.report.page import page as report_page
from tests.browser import OpenPage, overflow

from . import hostile
from .contrast import contrasts

PHONE = {"width": 390, "height": 844}
TEXT = ["\u202eabc", "def", "שלום", "עולם", "12", "!", *hostile.NAMES]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    configuration, rows = hostile.results()
    (folder / "run.json").write_text(json.dumps(configuration))
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "report.html").write_text(report_page(folder), encoding="utf-8")
    return folder / "report.html"


@pytest.fixture(scope="module")
def lens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty methods."""
    kept = torch.ones(2, len(TEXT)).bool()
    specs = [hostile.SPECS[0], *(f"streaming_llm:budget=90,sinks={i}" for i in range(1, 60))]
    choices = [[Choice(policy, kept, kept.float())] for (policy,) in compared(specs, [])]
    words = [Word(text.replace("\ud83d", "\ufffd"), special=False) for text in TEXT]
    prompt, name = LensPrompt([0], [2], choices), f"{hostile.LONG}{hostile.REVERSED}"
    text = lens_page(page_data(name, prompt, words, []))
    path = tmp_path_factory.mktemp("lens") / "lens.html"
    path.write_text(text, encoding="utf-8")
    return path


def lefts(page: Page, selector: str) -> list[float]:
    """Where things begin on the line on which the first one stands."""
    found: list[float] = page.evaluate(
        """(selector) => {
          const all = [...document.querySelectorAll(selector)];
          const boxes = all.map((e) => e.getBoundingClientRect());
          return boxes.filter((box) => Math.abs(box.top - boxes[0].top) < 5).map((box) => box.left);
        }""",
        selector,
    )
    return found


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_a_report_stays_inside_a_phone_and_can_be_read(
    report: Path, open_page: OpenPage, scheme: str
) -> None:
    with open_page(report, width=390, scheme=scheme) as page:
        page.locator("summary").first.click()
        assert overflow(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        assert page.locator("script, img").count() == 0
        assert min(contrasts(page, "h1, h2, h3, td, th, li, .soft, figcaption")) >= 4.5
        assert min(contrasts(page, "figure > svg text", "fill")) >= 4.5
        assert min(contrasts(page, ".key path[stroke]", "stroke")) >= 3
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 31)"
        assert dark == (scheme == "dark")
        names = page.locator("h2").all_inner_texts()
        assert names[:2] == [hostile.HTML, "[U+202E]abc"]
        assert "(no name)" in names


def test_a_report_names_every_method_in_full(report: Path, open_page: OpenPage) -> None:
    with open_page(report, width=390) as page:
        task = page.locator("figure").first
        assert (
            task.locator(".key li").count() == len(hostile.SPECS) + 2
        )  # the full cache, the front
        table = page.locator("table").first.locator("code").all_inner_texts()
        assert table[:2] == ["full", hostile.SPECS[0]]
        sizes = task.locator(".key bdi").evaluate_all(
            "all => all.map((e) => parseFloat(getComputedStyle(e).fontSize))"
        )
        assert min(sizes) >= 12


def test_names_that_are_read_from_the_right_stand_where_they_belong(
    tmp_path: Path, open_page: OpenPage
) -> None:
    configuration, rows = hostile.results()
    versions = {"שלום": "1", "עולם": "2", "torch": "3"}
    (tmp_path / "run.json").write_text(json.dumps({**configuration, "versions": versions}))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:8]))
    path = tmp_path / "report.html"
    path.write_text(report_page(tmp_path), encoding="utf-8")
    with open_page(path) as page:
        places = lefts(page, ".soft bdi")
        assert len(places) == 7
        assert places == sorted(places)


def test_a_report_prints_black_on_white_with_nothing_cut_off(
    report: Path, open_page: OpenPage
) -> None:
    with open_page(report, width=700, scheme="dark") as page:  # as wide as A4 between its margins
        page.emulate_media(media="print", color_scheme="dark")
        assert overflow(page) == []
        wide = "all => all.filter((e) => e.scrollWidth > e.clientWidth + 1).length"
        assert page.locator(".wide").evaluate_all(wide) == 0
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)"
        )
        assert min(contrasts(page, "h1, h2, td, th, li, .soft, figcaption")) >= 4.5


@pytest.mark.parametrize("size", [PHONE, {"width": 1280, "height": 700}])
def test_sixty_methods_leave_half_of_the_window_to_the_prompt(
    lens: Path, open_page: OpenPage, size: dict[str, int]
) -> None:
    with open_page(lens, width=size["width"]) as page:
        page.set_viewport_size(size)  # type: ignore[arg-type]
        page.wait_for_selector("html[data-ready]")
        assert overflow(page) == []
        page.locator(".method").nth(7).locator("[data-at='9']").focus()
        desk = page.locator("#desk").bounding_box()
        token = page.locator(".method").nth(7).locator("[data-at='9']").bounding_box()
        assert desk is not None
        assert token is not None
        assert desk["y"] == 0  # it stays in sight
        assert desk["height"] < size["height"] / 2
        assert desk["height"] <= token["y"] < size["height"] - 20
        last = page.locator("#states dd").last
        last.scroll_into_view_if_needed()
        box = last.bounding_box()
        assert box is not None
        assert 0 <= box["y"] < desk["height"]
        assert page.locator("#layer").is_visible()


def test_tokens_of_a_lens_stand_in_the_prompts_order(lens: Path, open_page: OpenPage) -> None:
    with open_page(lens) as page:
        page.wait_for_selector("html[data-ready]")
        words = page.locator(".method").first.locator(".word")
        assert words.all_inner_texts()[:2] == ["[U+202E]abc", "def"]
        places = lefts(page, ".method:first-child .word:nth-child(-n+6)")
        assert len(places) == 6
        assert places == sorted(places)
        page.locator("[data-at='0']").first.focus()
        assert page.locator("#where").inner_text() == 'Token 0: "[U+202E]abc"'
        assert "[U+202E]abc" in page.locator("h1").inner_text()


def test_a_lens_prints_every_method_and_no_desk_over_them(lens: Path, open_page: OpenPage) -> None:
    with open_page(lens, width=700) as page:
        page.wait_for_selector("html[data-ready]")
        page.emulate_media(media="print")
        assert overflow(page) == []
        assert page.locator(".method:visible").count() == 60
        assert page.locator("#desk").evaluate("e => getComputedStyle(e).position") == "static"
        assert page.locator("#states").is_hidden()
