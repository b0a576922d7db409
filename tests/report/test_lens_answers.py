"""Answers on a lens: whose they are, and how the page shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import foveate
from foveate.errors import InvalidParameter
from foveate.hf.model.internals import CACHE
from foveate.pictures.lens import compared
from foveate.pictures.lens.choices import Answers, Choice, LensAnswer, LensPrompt
from foveate.pictures.lens.page import Word, page_data
from foveate.pictures.lens.page import page as lens_page
from tests import zoo
from tests.browser import OpenPage, browser, chromium, open_page, overflow
from tests.zoo.directory import llava_processor

from .contrast import contrasts
from .lens_data import Scripts, Told

__all__ = ["browser", "chromium", "open_page"]

SPECS = ["snapkv:window=4,budget=50%", "h2o", "kvzip", "full"]
BUDGETS = ["20%", "50%", "100%"]
LONGEST = 5
EVIL = '<script>alert(1)</script></script><img src=x onerror="alert(2)">\u202e' + "x" * 200
READY = "html[data-ready]"


def shortfalls(model: Any, policy: Any, inputs: dict[str, Any], tokens: list[int]) -> list[float]:
    """How far each token is from the likeliest in a block of the policy's own that is told them."""
    found = []
    with torch.no_grad(), foveate.compress(model, policy):
        out = model(**inputs, use_cache=True)
        for token in tokens:
            logits = out.logits[0, -1]
            found.append(float(logits.max() - logits[token]))
            out = model(input_ids=torch.tensor([[token]]), **{CACHE: out[CACHE]}, use_cache=True)
    return found


def test_an_answer_is_the_one_that_a_block_of_its_own_gives() -> None:
    model, inputs = zoo.build("llava"), zoo.prompt("llava", lengths=(40,))
    reader, images = llava_processor(), [Image.new("RGB", (30, 20), "white")]
    session = foveate.compress(model, SPECS[0])
    lens = foveate.lens(
        session,
        reader,
        inputs,
        images,
        methods=SPECS[1:],
        budgets=BUDGETS,
        max_new_tokens=LONGEST,
    )
    assert lens.answers is not None
    told, full = Told(lens.html), lens.answers.full
    assert told.data["answer"]["text"] == full.text
    policies = compared(SPECS, BUDGETS)
    for place, (each, answers) in enumerate(zip(policies, lens.answers.choices, strict=True)):
        for step, (policy, answer) in enumerate(zip(each, answers, strict=True)):
            assert answer.spec == policy.spec == told.choice(place, step)["spec"]
            assert max(shortfalls(model, policy, inputs, answer.tokens)) < 1e-4, policy
            assert answer.text == reader.tokenizer.decode(answer.tokens).strip()
            assert (answer.same, answer.cut) == (answer.tokens == full.tokens, True)
            shown = {"text": answer.text, "cut": True, "same": answer.same}
            assert told.choice(place, step)["answer"] == shown
    others = [one for each in lens.answers.choices for one in each if not one.same]
    assert others  # the page tells them apart,
    assert (
        max(shortfalls(model, foveate.full(), inputs, others[0].tokens)) > 1e-3
    )  # and so does this


def test_it_ends_where_the_model_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama", lengths=(40,))
    session, reader = foveate.compress(model, "knorm:budget=9"), llava_processor().tokenizer
    lens = foveate.lens(session, reader, inputs, max_new_tokens=LONGEST)
    first = lens.answers.full.tokens[0]
    monkeypatch.setattr(model.generation_config, "eos_token_id", first)
    ended = foveate.lens(session, reader, inputs, max_new_tokens=LONGEST).answers.full
    assert (ended.tokens, ended.cut) == ([first], False)
    assert foveate.lens(session, reader, inputs).answers is None
    with pytest.raises(InvalidParameter, match="max_new_tokens=0: give at least 1"):
        foveate.lens(session, reader, inputs, max_new_tokens=0)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One method at two budgets, of which the second gives the full cache's answer."""
    kept = torch.ones(2, 3).bool()
    (policies,) = compared(["knorm"], ["33%", "67%"])
    choices = [[Choice(policy, kept, kept.float()) for policy in policies]]
    full = LensAnswer("full", [1], EVIL, cut=True, same=True)
    given = [
        LensAnswer(policies[0].spec, [2], "", False, False),
        full._replace(spec=policies[1].spec),
    ]
    words = [Word(text, special=False) for text in "abc"]
    prompt, said = LensPrompt([0], [2], choices), Answers(full, [given])
    html = lens_page(page_data("m", prompt, words, [], answers=said))
    path = tmp_path_factory.mktemp("lens") / "lens.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "light"), (390, "dark")])
def test_the_answer_of_the_chosen_budget_stands_above_its_prompt(
    hostile: Path, open_page: OpenPage, width: int, scheme: str
) -> None:
    seen = EVIL.replace("\u202e", "[U+202E]")
    assert "img" not in Scripts(hostile.read_text(encoding="utf-8")).tags
    with open_page(hostile, width=width, scheme=scheme) as page:
        page.wait_for_selector(READY)
        whole, mine = page.locator("#answer"), page.locator(".method .answer")
        assert whole.locator(".text").inner_text() == seen
        assert mine.inner_text().split("\n") == ["Not the full cache's answer", "(nothing)"]
        page.locator("#budget").fill("1")
        assert mine.locator(".mark").inner_text() == "✓ The full cache's answer"
        assert mine.locator(".text").inner_text() == seen
        assert mine.locator(".sign").inner_text().strip() == "…"
        assert page.locator("img, script").count() == 2  # its data and its own
        assert overflow(page) == []
        assert min(contrasts(page, ".answer .mark, .answer .text")) >= 4.5


def test_without_answers_none_has_a_place(tmp_path: Path, open_page: OpenPage) -> None:
    kept = torch.ones(2, 1).bool()
    choices = [[Choice(one, kept, kept.float()) for one in compared(["knorm"], ["9"])[0]]]
    path = tmp_path / "lens.html"
    prompt = LensPrompt([0], [2], choices)
    html = lens_page(page_data("m", prompt, [Word("a", special=False)], []))
    path.write_text(html, encoding="utf-8")
    with open_page(path) as page:
        page.wait_for_selector(READY)
        assert page.locator(".answer:visible").count() == 0
