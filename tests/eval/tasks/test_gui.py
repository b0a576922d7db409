"""Grounding on drawn screens: the boxes are where the targets are, and Chromium always ends."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import psutil
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page

from foveate.errors import InvalidInput, MissingPackage
from foveate.loading.model import Loaded
from foveate.prompts.sample import Sample
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.browser import window
from foveate_lab.eval.tasks import find_task, gui_icon, gui_text
from foveate_lab.eval.tasks.screen import SIZE
from tests.browser import chromium

__all__ = ["chromium"]

ICONS = {
    "Home": "home",
    "Back": "back",
    "Forward": "forward",
    "Pan": "move",
    "Zoom": "zoom_to_rect",
    "Subplots": "subplots",
    "Save": "filesave",
}
COUNT = 8


pytestmark = pytest.mark.usefixtures("chromium")


@pytest.fixture(scope="module")
def text(chromium: str) -> list[Sample]:
    return list(find_task("gui_text").samples(COUNT, 0))


@pytest.fixture(scope="module")
def icons(chromium: str) -> list[Sample]:
    return list(find_task("gui_icon").samples(COUNT, 0))


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """No process that the test started is there when it ends."""
    before = set(psutil.Process().children(recursive=True))
    yield
    started = set(psutil.Process().children(recursive=True)) - before
    _, alive = psutil.wait_procs(list(started), timeout=5)
    assert alive == []


def instruction(sample: Sample) -> str:
    found = re.search('"(.*)"', sample.question)
    assert found
    return found[1]


@pytest.mark.slow
def test_samples_follow_from_the_seed_alone(
    text: list[Sample], icons: list[Sample], nothing_left: None
) -> None:
    for name, first in (("gui_text", text), ("gui_icon", icons)):
        assert len({(one.question, one.images[0].tobytes()) for one in first}) == COUNT
        for seed in (0, 1):
            for one, other in zip(first, find_task(name).samples(1, seed), strict=False):
                same = (one.question, one.answers) == (other.question, other.answers)
                assert same == (seed == 0)
                assert (one.images[0].tobytes() == other.images[0].tobytes()) == (seed == 0)


@pytest.mark.parametrize("name", ["text", "icons"])
def test_the_centre_of_the_box_is_right_and_other_answers_are_wrong(
    name: str, request: pytest.FixtureRequest, loaded: Loaded
) -> None:
    found: list[Sample] = request.getfixturevalue(name)
    task = find_task("gui_text" if name == "text" else "gui_icon")
    for sample in found:
        left, top, right, bottom = sample.evidence[0].box
        assert 0 <= left < right <= SIZE[0]
        assert 0 <= top < bottom <= SIZE[1]
        assert sample.images[0].size == SIZE
        assert sample.answers == (f"[{left}, {top}, {right}, {bottom}]",)
        assert task.metric(sample.answers[0], sample) == 1.0
        x, y = (left + right) / 2 / SIZE[0], (top + bottom) / 2 / SIZE[1]
        assert task.metric(f"click at ({x:.3f}, {y:.3f})", sample) == 1.0
        assert task.metric(f"[{right + 1}, {top}, {right + 9}, {bottom}]", sample) == 0.0
        assert task.metric(f"({left}, {bottom + 1})", sample) == 0.0
    rows = list(measured(loaded, task, found[0], ["oracle:budget=60%"], "query-aware"))
    assert all(row["kl"] is not None and row["score"] in (0, 1) for row in rows)


@pytest.mark.slow
def test_playwrights_own_search_finds_one_such_element_and_there(
    text: list[Sample], nothing_left: None
) -> None:
    kinds = {sample.facts["type"] for sample in text}
    assert kinds == {"link", "button", "heading"}
    with window("this test", SIZE) as page, gui_text.documentation() as address:
        for sample in text:
            page.goto(f"{address}{sample.facts['page']}")
            page.evaluate("y => scrollTo(0, y)", sample.facts["scrolled"])
            (box,) = on_screen(searched(page, sample))
            assert np.allclose(box, sample.evidence[0].box, atol=1)


def searched(page: Page, sample: Sample) -> Locator:
    says, kind = sample.evidence[0].text, sample.facts["type"]
    assert instruction(sample).endswith(says)
    if kind == "heading":
        return page.locator("td strong", has_text=re.compile(rf"^\s*{re.escape(says)}\s*$"))
    return page.get_by_role(kind, name=says, exact=True)


def on_screen(found: Locator) -> list[tuple[float, ...]]:
    """The boxes of those that are seen, at least in part: left, top, right, bottom."""
    boxes = [box for one in found.all() if (box := one.bounding_box())]
    corners = [(b["x"], b["y"], b["x"] + b["width"], b["y"] + b["height"]) for b in boxes]
    return [c for c in corners if c[1] < SIZE[1] and c[3] > 0 and c[0] < SIZE[0] and c[2] > 0]


def test_the_icon_in_the_box_is_the_one_that_is_asked_for(icons: list[Sample]) -> None:
    pictures = Path(matplotlib.get_data_path(), "images")
    drawn = {}
    for name, file in ICONS.items():
        with Image.open(pictures / f"{file}.png") as image:
            drawn[name] = ink(image.getchannel("A"))
    asked = set()
    for sample in icons:
        name = instruction(sample).split(":")[0]
        left, top, right, bottom = sample.evidence[0].box
        x, y = (left + right) // 2, (top + bottom) // 2
        seen = sample.images[0].convert("L")
        near = [
            -ink(seen.crop((x + i - 12, y + j - 12, x + i + 12, y + j + 12)))  # dark on light
            for i in range(-3, 4)
            for j in range(-4, 5)
        ]
        alike = {one: max(float((shape * n).sum()) for n in near) for one, shape in drawn.items()}
        assert max(alike, key=alike.__getitem__) == name
        assert alike[name] > 0.9
        asked.add(name)
        figure = re.search(r" in Figure (\d)$", instruction(sample))
        assert (figure is None) == (sample.evidence[0].text == instruction(sample))
    assert len(asked) > 3


def ink(image: Image.Image) -> Any:
    """The picture's values, of mean 0 and length 1."""
    values = np.asarray(image).astype(float)
    values -= values.mean()
    return values / max(float(np.sqrt((values**2).sum())), 1e-9)


@pytest.mark.parametrize(("name", "module"), [("gui_text", gui_text), ("gui_icon", gui_icon)])
def test_chromium_and_the_server_end_with_an_error_too(
    name: str, module: object, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(page: Page, *others: object) -> None:
        page.goto("about:blank")
        raise RuntimeError("while drawing")

    monkeypatch.setattr(module, "_shot", fails)
    with pytest.raises(RuntimeError, match="while drawing"):
        list(find_task(name).samples(1, 0))


def test_what_is_missing_is_named(
    tmp_path: Path, nothing_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def says(error: type[Exception], text: str, name: str = "gui_icon") -> None:
        with pytest.raises(error, match=text):
            list(find_task(name).samples(1, 0))

    monkeypatch.setenv("CHROMIUM", str(tmp_path / "none"))
    says(InvalidInput, r"none' is not a program on the PATH.*set CHROMIUM")
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CHROMIUM", str(broken))
    says(InvalidInput, r"Chromium \(.*broken\) draws no pages for gui_icon")
    monkeypatch.delenv("CHROMIUM")
    monkeypatch.setattr("foveate_lab.eval.tasks.gui_text.sys.executable", "/bin/echo")
    says(InvalidInput, "serves no pages: -u -m pydoc", "gui_text")
    monkeypatch.setitem(sys.modules, "playwright.sync_api", None)
    says(MissingPackage, r"gui_text needs the package 'playwright'.*foveate\[screens\]", "gui_text")
    gui_icon.toolbar.cache_clear()
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    says(MissingPackage, r"gui_icon needs the package 'matplotlib'.*foveate\[screens\]")
