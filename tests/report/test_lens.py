"""A lens tells what the library keeps, to the last token."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import foveate
from foveate.errors import AlreadyCompressing, InvalidInput, MissingPackage
from foveate.hf import branch, record
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from foveate.pictures.lens import compared
from tests import zoo
from tests.conformance.policies import EVERY, of_method
from tests.zoo.directory import llava_processor, tokenizer

from .lens_data import Scripts, Told

BUDGETS = ("30%", "12", *(f"{p}%" for p in range(40, 95, 5)))  # more than a byte has bits
IMAGES = {"llava": 1, "qwen2_vl": 1, "gemma3": 1, "llama": 0}
POLICIES = {
    **EVERY,
    "full": foveate.full(),
    "read twice": foveate.kvzip(budget=0.5),
    "kivi": foveate.kivi(bits=4, residual=8),
    "all fits": of_method("snapkv", 500),
}
EVIL = '<script>alert(1)</script></script><img src=x onerror="alert(2)">&amp;'


def prompt(family: str, tokens: int = 40) -> tuple[Any, dict[str, Any], list[Image.Image]]:
    images = [Image.new("RGB", (30, 20), "white")] * IMAGES[family]
    return zoo.build(family), zoo.prompt(family, lengths=(tokens,)), images


def columns(cache: Any) -> list[list[list[int]]]:
    """The tokens that a compressed cache holds, by layer and head."""
    return [
        [sorted(set(head) - {-1}) for head in layer.pairs.columns[0].tolist()]
        for layer in foveate_layers(cache)
    ]


def lens_on(family: str, policies: list[Any], **more: Any) -> foveate.Lens:
    model, inputs, images = prompt(family)
    first, *rest = policies
    session = foveate.compress(model, first)
    reader = llava_processor() if images else tokenizer()
    return foveate.lens(session, reader, inputs, images, methods=rest, **more)


@pytest.mark.parametrize("family", IMAGES)
def test_what_is_kept_is_what_a_block_and_a_branch_keep(family: str) -> None:
    model, inputs, _ = prompt(family)
    policies = [one for one in POLICIES.values() if not one.reads_again or family != "gemma3"]
    told = Told(lens_on(family, policies).html)
    kinds = {(one.reads_column_sums, one.reads_hidden_states) for one in policies}
    recordings = {kind: record(model, sums=kind[0], hidden=kind[1], **inputs) for kind in kinds}
    assert len(told.data["methods"]) == len({policy.spec for policy in policies})
    seen = set()
    for place, policy in enumerate(dict.fromkeys(policies)):
        kept = told.mask("kept", place, 0)
        with foveate.compress(model, policy) as session:
            assert kept == columns(session.prefill(**inputs)), policy
        with foveate.compress(model, policy) as session:
            kind = policy.reads_column_sums, policy.reads_hidden_states
            assert kept == columns(branch(session, recordings[kind])), policy
        seen.add(str(kept))
    assert len(seen) > len(policies) / 2  # policies differ, so a page that mixes them up fails


def test_every_budget_of_every_method_is_told_apart() -> None:
    model, inputs, _ = prompt("llava")
    specs = ["snapkv:window=4,budget=50%", "h2o", "adakv:window=4", "prefixkv", "full"]
    told = Told(lens_on("llava", specs, budgets=BUDGETS).html)
    for place, spec in enumerate(specs):
        choices = told.data["methods"][place]["choices"]
        assert len(choices) == (1 if spec == "full" else len(BUDGETS))
        for step, choice in enumerate(choices):
            policy = foveate.policy(choice["spec"])
            assert choice["budget"] == ("" if spec == "full" else BUDGETS[step])
            with foveate.compress(model, policy) as session:
                assert told.mask("kept", place, step) == columns(session.prefill(**inputs))


def test_without_budgets_each_method_has_its_own() -> None:
    told = Told(lens_on("llava", ["knorm:budget=9", "vnorm:budget=50%"]).html)
    assert [[c["budget"] for c in m["choices"]] for m in told.data["methods"]] == [["9"], ["50%"]]
    assert compared(["knorm", "knorm:budget=20%"], ["9"]) == [[foveate.knorm(budget=9)]]


def test_scores_are_the_methods_to_a_step_of_eight_bits() -> None:
    model, inputs, _ = prompt("llava")
    told = Told(lens_on("llava", ["knorm:budget=9", "streaming_llm"], budgets=BUDGETS).html)
    with torch.no_grad():
        cache = model(**inputs, use_cache=True)[CACHE]
    first, second = (told.choice(0, step) for step in (0, 1))
    assert first["scores"] == second["scores"]  # knorm's score knows no budget
    for layer, found in zip(cache.layers, told.scores(first["scores"]), strict=True):
        expected = -layer.keys[0].norm(dim=-1)
        span = expected.amax(-1, keepdim=True) - expected.amin(-1, keepdim=True)
        assert ((torch.tensor(found) - expected).abs() <= span / 254 + 1e-6).all()
        for head in zip(found, expected.tolist(), strict=True):
            assert max(head[0]) == pytest.approx(max(head[1]))
            assert min(head[0]) == pytest.approx(min(head[1]))


def test_what_is_always_kept_is_marked_and_still_has_its_score_from_another_budget() -> None:
    told = Told(lens_on("llava", ["h2o:recent=0.5,budget=9"], budgets=["10", "50%", "100%"]).html)
    small, half, whole = (told.choice(0, step) for step in range(3))
    assert told.mask("protected", 0, 0) == [[list(range(35, 40))] * 2] * 3
    assert told.mask("protected", 0, 1) == [[list(range(30, 40))] * 2] * 3
    assert whole["scores"] is None  # everything fits
    assert told.mask("kept", 0, 2) == [[list(range(40))] * 2] * 3
    assert small["scores"] == half["scores"]
    for layer in told.scores(small["scores"]):
        for head in layer:  # the last five are always kept, so their scores are never told
            assert [t for t, score in enumerate(head) if score is None] == list(range(35, 40))


def test_a_score_that_depends_on_the_budget_is_told_for_each() -> None:
    told = Told(lens_on("llava", ["csp:budget=9"], budgets=["30%", "50%"]).html)
    assert told.choice(0, 0)["scores"] != told.choice(0, 1)["scores"]


def test_layers_have_the_models_numbers() -> None:
    told = Told(lens_on("gemma3", ["knorm:budget=9"]).html)
    kinds = zoo.build("gemma3").config.text_config.layer_types
    full = [i for i, kind in enumerate(kinds) if kind == "full_attention"]
    assert 0 < len(full) < len(kinds)
    assert [layer["index"] for layer in told.data["layers"]] == full


def test_the_page_is_small() -> None:
    """Noise, which nothing makes smaller; the size of a model of 32 layers with 8 KV heads each."""
    from foveate.pictures.lens.choices import Choice, LensPrompt
    from foveate.pictures.lens.page import Word, page, page_data

    draw = torch.Generator().manual_seed(0)
    choices = [
        [
            Choice(policy, torch.rand(256, 600, generator=draw) < 0.5, scores)
            for policy in compared(["knorm"], ["5%", "10%", "20%", "40%", "60%"])[0]
        ]
        for scores in torch.rand(3, 256, 600, generator=draw)
    ]
    prompt = LensPrompt(list(range(32)), [8] * 32, choices)
    text = page(page_data("m", prompt, [Word("a", False)] * 600, []))
    assert 1_000_000 < len(text) < 3_000_000


def test_text_from_the_prompt_and_the_model_is_data_alone(tmp_path: Path) -> None:
    words = tokenizer()
    inputs = dict(words(EVIL, return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    model = zoo.fresh("llama")
    model.config._name_or_path = f"x{EVIL.replace('/', '|')}"
    lens = foveate.lens(foveate.compress(model, "knorm:budget=9"), words, inputs)
    scripts = Scripts(lens.html)
    assert [given.get("id") for given, _ in scripts.found] == ["data", None]
    assert "img" not in scripts.tags
    (part,) = Told(lens.html).data["parts"]
    assert "".join(word["text"] for word in part["words"]) == EVIL


def test_it_loads_nothing_and_runs_by_its_own_script_alone() -> None:
    html = lens_on("llava", ["knorm:budget=9"]).html
    assert html.startswith("<!doctype html>")
    for text in ("http:", "https:", "@import", "url(", "unsafe-inline"):
        assert text not in html
    assert "default-src &#39;none&#39;" not in html  # the policy is one, not an escaped one
    assert "default-src 'none'; img-src data:;" in html


class Frames(HTMLParser):
    """The frames of a page."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag == "iframe"
        self.found.append(dict(attrs))


def test_a_notebook_shows_it_in_a_frame_and_a_file_holds_it(tmp_path: Path) -> None:
    lens = lens_on("llava", ["knorm:budget=9"])
    (frame,) = Frames(lens._repr_html_()).found
    assert frame["srcdoc"] == lens.html
    assert (
        frame["sandbox"] == "allow-scripts"
    )  # and so no same origin: the notebook is out of reach
    assert lens.save(tmp_path / "a lens.html").read_text(encoding="utf-8") == lens.html
    assert len(repr(lens)) < 100


def test_a_lens_needs_one_prompt_without_padding() -> None:
    model = zoo.build("llama")
    session, words = foveate.compress(model, "knorm:budget=9"), tokenizer()
    for inputs, message in (
        (zoo.prompt("llama", lengths=(9, 9)), r"input_ids has shape \(2, 9\)"),
        ({"inputs_embeds": torch.zeros(1, 9, 64)}, "input_ids has shape None"),
        (zoo.row("llama", zoo.prompt("llama", lengths=(9, 20)), 0), None),
        (
            {"input_ids": torch.ones(1, 9).long(), "attention_mask": torch.arange(9)[None] > 2},
            "3 of 9 tokens are masked",
        ),
    ):
        if message is None:
            foveate.lens(session, words, inputs)
            continue
        with pytest.raises(InvalidInput, match=message):
            foveate.lens(session, words, inputs)


def test_images_must_be_given() -> None:
    model, inputs, images = prompt("llava")
    session = foveate.compress(model, "knorm:budget=9")
    with pytest.raises(InvalidInput, match=r"9 visual tokens of 1 image\(s\), and 2 image"):
        foveate.lens(session, llava_processor(), inputs, images * 2)
    with pytest.raises(InvalidInput, match=r"9 visual tokens of 1 image\(s\), and 0 image"):
        foveate.lens(session, llava_processor(), inputs)


def test_where_patches_are_not_known_the_page_says_so() -> None:
    model, inputs, images = prompt("llava")
    session = foveate.compress(model, "knorm:budget=9")
    known, unknown = (
        Told(foveate.lens(session, reader, inputs, images).html)
        for reader in (llava_processor(), tokenizer())
    )
    assert known.data["note"] == ""
    assert "not known for llava and TokenizersBackend" in unknown.data["note"]
    for told, places in ((known, 9), (unknown, 0)):
        assert [len(part["places"]) for part in told.data["parts"] if "image" in part] == [places]
    assert known.mask("kept", 0, 0) == unknown.mask("kept", 0, 0)


def test_inside_a_block_it_is_refused_and_beside_one_it_is_not() -> None:
    model, inputs, images = prompt("llava")
    with foveate.compress(model, "knorm:budget=9") as session:
        with pytest.raises(AlreadyCompressing):
            foveate.lens(session, llava_processor(), inputs, images)
        cache = session.prefill(**inputs)
    told = Told(foveate.lens(session, llava_processor(), inputs, images).html)
    assert told.mask("kept", 0, 0) == columns(cache)


def test_without_jinja2_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingPackage, match=r"the lens needs the package 'jinja2'"):
        lens_on("llava", ["knorm:budget=9"])
