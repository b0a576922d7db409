"""The lens in Chromium: what it shows, by pointer and by keyboard, and what it cannot do."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, TimeoutError

import foveate
from foveate.errors import InvalidInput
from tests import zoo
from tests.browser import OpenPage, overflow
from tests.zoo.directory import llava_processor, tokenizer

from .contrast import contrasts
from .lens_data import Told

SPECS = ["snapkv:window=4,budget=50%", "adakv:window=4", "knorm"]
BUDGETS = ["20%", "50%", "80%"]
EVIL = '<script>alert(1)</script></script><img src=x onerror="alert(2)">'
READY = "html[data-ready]"


@pytest.fixture(scope="module")
def lens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On two images of 3 x 3 patches, three layers of two KV heads."""
    inputs = zoo.prompt("llava", lengths=(60,), images=2)
    images = [Image.linear_gradient("L").convert("RGB"), Image.new("RGB", (90, 60), "white")]
    session = foveate.compress(zoo.build("llava"), SPECS[0])
    reader, methods = llava_processor(), SPECS[1:]
    made = foveate.lens(session, reader, inputs, images, methods=methods, budgets=BUDGETS)
    return made.save(tmp_path_factory.mktemp("lens") / "a lens.html")


@pytest.fixture
def told(lens: Path) -> Told:
    return Told(lens.read_text(encoding="utf-8"))


def held(page: Page, method: int) -> list[float]:
    """How bright each token of a method is drawn, in the prompt's order."""
    pairs: list[list[float]] = page.evaluate(
        """(method) => {
          const tokens = document.querySelectorAll(".method")[method].querySelectorAll("[data-at]");
          const held = (e) => getComputedStyle(e).getPropertyValue("--held");
          return [...tokens].map((e) => [Number(e.dataset.at), Number(held(e))]);
        }""",
        method,
    )
    return [share for _, share in sorted(pairs)]


def expected(told: Told, method: int, layer: int, head: int, budget: int) -> list[float]:
    """The same from the page's data; -1 for all."""
    kept = told.mask("kept", method, budget)
    some = [
        one
        for i, heads in enumerate(kept)
        if layer in (-1, i)
        for j, one in enumerate(heads)
        if head in (-1, j)
    ]
    return [sum(token in one for one in some) / len(some) for token in range(told.tokens)]


def focused(page: Page) -> int:
    """The token that has the focus."""
    return int(page.evaluate("document.activeElement.dataset.at"))


def test_sliders_change_what_is_bright(lens: Path, told: Told, open_page: OpenPage) -> None:
    with open_page(lens) as page:
        page.wait_for_selector(READY)
        assert page.locator(".method h2").all_inner_texts() == [
            "snapkv:window=4",
            "adakv:window=4",
            "knorm",
        ]
        seen = set()
        for layer, head, budget in ((-1, -1, 0), (0, 0, 0), (2, 1, 1), (1, -1, 2), (-1, 1, 1)):
            for name, value in (("layer", layer), ("head", head), ("budget", budget)):
                page.locator(f"#{name}").fill(str(value))
            for method in range(len(SPECS)):
                shown = held(page, method)
                assert shown == pytest.approx(expected(told, method, layer, head, budget))
                seen.add(tuple(shown))
        assert len(seen) == 15
        assert page.locator("#layer-now").inner_text() == "all 3"
        assert page.locator("#head-now").inner_text() == "1"
        assert page.locator("#budget-now").inner_text() == "50%"
        assert "Keeps 30.0 of 60 tokens (50 %)" in page.locator(".sum").first.inner_text()


def test_bars_are_as_high_as_what_a_layer_keeps(
    lens: Path, told: Told, open_page: OpenPage
) -> None:
    with open_page(lens) as page:
        page.wait_for_selector(READY)
        page.locator("#head").fill("1")
        page.locator("#layer").fill("2")
        shares = [
            [sum(expected(told, method, layer, 1, 0)) / 60 for layer in range(3)]
            for method in range(len(SPECS))
        ]
        assert len(set(shares[1])) > 1  # adakv's heads share a layer's budget
        heights: list[list[float]] = page.evaluate(
            """() => [...document.querySelectorAll(".bars")].map((bars) =>
              [...bars.children].map((bar) => bar.getBoundingClientRect().height))"""
        )
        unit = heights[0][0] / shares[0][0]  # one scale for all methods
        for mine, wanted in zip(heights, shares, strict=True):
            assert mine == pytest.approx([unit * share for share in wanted], abs=0.1)
        assert page.locator(".bars").first.locator("i.on").count() == 1
        assert page.locator(".bars").first.get_attribute("aria-label") == (
            "Kept in each layer: 20 %"
        )


def test_cells_lie_on_their_patches(lens: Path, told: Told, open_page: OpenPage) -> None:
    with open_page(lens) as page:
        page.wait_for_selector(READY)
        images = [part for part in told.data["parts"] if "image" in part]
        assert [part["image"] for part in images] == [0, 1]
        for part in images:
            picture = page.locator(".method").first.locator(".picture").nth(part["image"])
            frame = picture.locator("img").bounding_box()
            assert frame is not None
            for index, place in enumerate(part["places"]):
                cell = picture.locator(f"[data-at='{place}']").bounding_box()
                assert cell is not None
                down, across = divmod(index, 3)
                middle = (cell["x"] + cell["width"] / 2, cell["y"] + cell["height"] / 2)
                assert middle == pytest.approx(
                    (
                        frame["x"] + frame["width"] * (across + 0.5) / 3,
                        frame["y"] + frame["height"] * (down + 0.5) / 3,
                    ),
                    abs=0.5,
                )


def test_the_keyboard_reaches_every_slider_and_every_token(lens: Path, open_page: OpenPage) -> None:
    with open_page(lens) as page:
        page.wait_for_selector(READY)
        for name in ("layer", "head", "budget"):
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.id") == name
            page.keyboard.press("ArrowRight")
        assert page.locator("#layer-now").inner_text() == "0"
        assert page.locator("#head-now").inner_text() == "0"
        assert page.locator("#budget-now").inner_text() == "50%"
        assert page.locator("#layer").get_attribute("aria-valuetext") == "0"
        page.keyboard.press("Tab")
        assert focused(page) == 0
        for token in range(1, 60):
            page.keyboard.press("ArrowRight")
            assert focused(page) == token
            assert page.locator("#where").inner_text().startswith(f"Token {token}: ")
        page.keyboard.press("ArrowRight")
        assert focused(page) == 59
        page.keyboard.press("Home")
        assert focused(page) == 0
        page.keyboard.press("End")
        page.keyboard.press("Tab")  # one stop for each method
        assert focused(page) == 0
        page.keyboard.press("Shift+Tab")
        assert focused(page) == 59


def test_up_and_down_go_by_rows_of_an_image(lens: Path, told: Told, open_page: OpenPage) -> None:
    (places, _) = [part["places"] for part in told.data["parts"] if "image" in part]
    with open_page(lens) as page:
        page.wait_for_selector(READY)
        page.locator(f"[data-at='{places[1]}']").first.focus()
        for key, there in (
            ("ArrowDown", places[4]),
            ("ArrowDown", places[7]),
            ("ArrowDown", places[8] + 1),
            ("ArrowUp", places[8]),
            ("ArrowUp", places[5]),
            ("ArrowUp", places[2]),
            ("ArrowUp", places[0] - 1),
            ("ArrowDown", places[0]),
        ):
            page.keyboard.press(key)
            assert focused(page) == there, key


def test_pointing_and_focus_tell_place_and_score(
    lens: Path, told: Told, open_page: OpenPage
) -> None:
    place = told.data["parts"][1]["places"][5]
    with open_page(lens) as page:
        page.wait_for_selector(READY)
        page.locator("#layer").fill("1")
        page.locator("#head").fill("0")
        page.locator(".method").nth(1).locator(f"[data-at='{place}']").hover()
        assert page.locator("#where").inner_text() == f"Token {place}: image 1, row 2, column 3"
        assert page.locator(".here").count() == len(SPECS)
        for method, said in enumerate(page.locator("#states dd").all_inner_texts()):
            choice = told.choice(method, 0)
            kept = place in told.mask("kept", method, 0)[1][0]
            score = told.scores(choice["scores"])[1][0][place]
            assert score is not None
            state, shown = re.fullmatch(r"(kept|evicted), score (\S+)", said).groups()
            assert state == ("kept" if kept else "evicted")
            assert float(shown) == pytest.approx(score, rel=0.05)
        page.locator("#head").fill("-1")
        page.locator(".method").first.locator("[data-at='59']").focus()
        assert page.locator("#where").inner_text().startswith('Token 59: "')
        states = page.locator("#states dd").all_inner_texts()
        assert states[:2] == ["kept by 2 of 2 heads, always"] * 2  # the window
        assert re.fullmatch(r"kept by \d of 2 heads, mean score \S+", states[2])


def test_what_was_not_computed_is_told_from_what_was_evicted(
    lens: Path, tmp_path: Path, open_page: OpenPage
) -> None:
    inputs = zoo.prompt("llava", lengths=(60,), images=2)
    images = [Image.new("RGB", (12, 12), shade) for shade in ("black", "white")]
    method = "snapkv:window=4,budget=60%"
    session = foveate.compress(zoo.build("llava"), f"fastv.prune(layer=1,keep=60%)+{method}")
    made = foveate.lens(session, llava_processor(), inputs, images, methods=[method])
    path = made.save(tmp_path / "pruned.html")
    told = Told(path.read_text(encoding="utf-8"))
    computed, kept = told.mask("computed", 0, 0)[2][0], told.mask("kept", 0, 0)[2][0]
    fates = {
        place: "not computed" if place not in computed else "kept" if place in kept else "evicted"
        for part in told.data["parts"]
        for place in part.get("places", ())
    }
    assert set(fates.values()) == {"kept", "evicted", "not computed"}
    assert told.data["methods"][1]["computed"] is None
    with open_page(path) as page:
        page.wait_for_selector(READY)
        page.locator("#layer").fill("2")
        page.locator("#head").fill("0")
        for place, fate in fates.items():
            cell = page.locator(".method").first.locator(f"[data-at='{place}']")
            cell.focus()
            said, other = page.locator("#states dd").all_inner_texts()
            assert said.partition(",")[0] == fate
            assert other.partition(",")[0] in ("kept", "evicted")
            drawn = cell.evaluate("(e) => getComputedStyle(e).getPropertyValue('--never')")
            assert drawn == ("1" if fate == "not computed" else "0")
        page.locator("#layer").fill("-1")
        page.locator("#head").fill("-1")
        never = next(place for place, fate in fates.items() if fate == "not computed")
        page.locator(".method").first.locator(f"[data-at='{never}']").focus()
        said = page.locator("#states dd").first.inner_text()
        assert re.match(r"kept by \d of 6 heads, evicted by \d, not computed in 4", said)
        never = sum(fate == "not computed" for fate in fates.values()) * 2 / 3
        assert f"not computed: {never:.1f}" in page.locator(".sum").first.inner_text()
        assert page.locator("#fates").is_visible()
    with open_page(lens) as page:
        page.wait_for_selector(READY)
        assert page.locator("#fates").is_hidden()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (400, "light"), (400, "dark")])
def test_it_fits_and_can_be_read(lens: Path, open_page: OpenPage, width: int, scheme: str) -> None:
    with open_page(lens, width=width, scheme=scheme) as page:
        page.wait_for_selector(READY)
        page.locator("[data-at='30']").first.focus()
        assert overflow(page) == []
        assert page.locator(".slider:visible").count() == 3
        for budget in (0, 2):
            page.locator("#budget").fill(str(budget))
            assert min(contrasts(page, ".word")) >= 4.5
        assert min(contrasts(page, ".soft, .sum, #states dt, #states dd, label")) >= 4.5
        assert page.evaluate(
            """() => [...document.querySelectorAll("#where, #states dd")]
              .every((e) => e.scrollWidth <= e.clientWidth)"""
        )
        page.emulate_media(media="print")
        assert overflow(page) == []
        assert page.locator("#layer").is_hidden()
        assert page.locator("#layer-now").is_visible()


def test_text_can_be_read_under_the_veil_of_a_dropped_patch(
    lens: Path, open_page: OpenPage
) -> None:
    with open_page(lens) as page:
        page.wait_for_selector(READY)
        page.locator("#layer").fill("1")
        page.locator("#head").fill("0")
        colors: dict[str, str] = page.evaluate(
            """() => Object.fromEntries([...document.querySelectorAll(".cell")]
              .map((e) => getComputedStyle(e))
              .map((s) => [s.getPropertyValue("--held"), s.backgroundColor]))"""
        )
    assert set(colors) == {"0", "1"}
    *fog, opacity = map(float, re.findall(r"[0-9.]+", colors["0"]))
    assert re.findall(r"[0-9.]+", colors["1"])[3] == "0"
    paper, ink = (
        sum(
            weight * ((shade + (x / 255 - shade) * opacity) ** 2.2)
            for weight, x in zip((0.2126, 0.7152, 0.0722), fog, strict=True)
        )
        for shade in (1, 0)
    )
    assert (paper + 0.05) / (ink + 0.05) > 3  # WCAG 2.2's contrast for large text


def test_long_names_and_unbroken_words_fit_too(tmp_path: Path, open_page: OpenPage) -> None:
    words = tokenizer()
    inputs = dict(words("x" * 300 + EVIL, return_tensors="pt"))
    stages = (
        "score=recency(),budget=uniform(amount=8),select=top_k(),merge=merge_nearest(by=cosine)"
    )
    session = foveate.compress(zoo.build("llama"), f"policy:{stages}")
    path = foveate.lens(session, words, inputs).save(tmp_path / "lens.html")
    with open_page(path, width=400) as page:
        page.wait_for_selector(READY)
        assert overflow(page) == []
        assert page.locator(".slider:visible").count() == 2  # one budget
        assert page.locator(".prompt").inner_text() == "x" * 300 + EVIL.replace(" ", "␣")
        assert page.locator("script").count() == 2


def test_the_page_can_run_and_reach_nothing_else(lens: Path, browser: Browser) -> None:
    page = browser.new_page()
    page.goto(lens.as_uri())
    page.wait_for_selector(READY)
    tried: dict[str, Any] = page.evaluate(
        """async () => {
          const failed = (promise) => promise.then(() => false, () => true);
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          const image = Object.assign(new Image(), { src: "picture.png" });
          document.body.append(image);
          return { fetched: !await failed(fetch("http://127.0.0.1:9/")), ran: Boolean(window.ran),
            loaded: !await failed(image.decode()) };
        }"""
    )
    assert tried == {"fetched": False, "ran": False, "loaded": False}
    page.close()


def test_a_notebooks_frame_shows_it(lens: Path, tmp_path: Path, open_page: OpenPage) -> None:
    text = foveate.Lens(lens.read_text(encoding="utf-8"))._repr_html_()
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><title>{html.escape(EVIL)}</title>{text}")
    with open_page(notebook) as page:
        frame = page.frame_locator("iframe")
        ready = frame.locator(READY)
        try:
            ready.wait_for(state="attached", timeout=20_000)
        except TimeoutError:  # a frame has a process of its own, and that may never start
            page.reload()
            ready.wait_for(state="attached")
        frame.locator("#budget").fill("2")
        assert frame.locator("#budget-now").inner_text() == "80%"
        inside = page.frames[1]
        assert inside.evaluate("self.origin") == "null"  # what is of no origin reaches no other


def test_a_time_line_is_as_high_as_what_is_kept_of_a_frame(
    lens: Path, tmp_path: Path, open_page: OpenPage
) -> None:
    inputs = zoo.prompt("llava", lengths=(60,), images=2)
    images = [Image.new("RGB", (12, 12), shade) for shade in ("black", "white")]
    session = foveate.compress(zoo.build("llava"), "knorm:budget=20%")
    made = foveate.lens(session, llava_processor(), inputs, images, times=[0.0, 2.5])
    path = made.save(tmp_path / "film.html")
    told = Told(path.read_text(encoding="utf-8"))
    tokens = expected(told, 0, -1, -1, 0)
    shares = [sum(tokens[at] for at in f["places"]) / 9 for f in told.data["frames"]]
    assert len(set(shares)) == 2
    with open_page(path) as page:
        page.wait_for_selector(READY)
        bars = page.locator(".film i")
        titles = [bars.nth(i).get_attribute("title") or "" for i in (0, 1)]
        assert [title.partition(":")[0] for title in titles] == ["frame at 0 s", "frame at 2.5 s"]
        assert page.locator(".caption").all_inner_texts() == ["frame at 0.0 s", "frame at 2.5 s"]
        heights = [(bars.nth(i).bounding_box() or {})["height"] for i in (0, 1)]
        assert heights[0] * shares[1] == pytest.approx(heights[1] * shares[0], rel=0.02)
        assert page.locator("#film").is_visible()
    with open_page(lens) as page:
        page.wait_for_selector(READY)
        assert page.locator(".film").first.is_hidden()
        assert page.locator("#film").is_hidden()
    with pytest.raises(InvalidInput, match="there are 3 times for 2 image"):
        foveate.lens(session, llava_processor(), inputs, images, times=[0.0, 1.0, 2.0])
