"""``foveate lens``: which methods at which budgets stand on the page, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.report.lens_data import Told

from .conftest import Foveate, refused

WORDS = "Which of these words is seen best, the first, the last, or the one that is looked at?"


def made(result: Any, path: Path) -> Told:
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stdout.startswith(f"{path}: what every head keeps of ")
    assert "Open it in a browser" in result.stdout
    return Told(path.read_text(encoding="utf-8"))


def test_methods_stand_side_by_side_at_the_budgets_given(
    foveate: Foveate, llava: Path, picture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    result = foveate(
        "lens",
        "--model",
        llava,
        "--image",
        picture,
        "--image",
        picture,
        "--prompt",
        WORDS,
        "--method",
        "knorm",
        "--method",
        "h2o:recent=0.25",
        "--budget",
        "25%",
        "--budget",
        "40",
        "-o",
        out,
    )
    told = made(result, out)
    assert told.data["model"] == str(llava)
    shown = [(m["name"], [c["budget"] for c in m["choices"]]) for m in told.data["methods"]]
    assert shown == [("knorm", ["25%", "40"]), ("h2o:recent=0.25", ["25%", "40"])]
    assert [part.get("image") for part in told.data["parts"]] == [None, 0, 1, None]
    text = "".join(w["text"] for part in told.data["parts"] for w in part.get("words", []))
    assert text == f"user : {WORDS}\nassistant : "
    assert [len(head) for layer in told.mask("kept", 0, 1) for head in layer] == [40] * 6


def test_a_spec_with_a_budget_keeps_it_and_the_others_have_four(
    foveate: Foveate, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = foveate(
        "lens",
        "--model",
        llama,
        "--prompt",
        WORDS,
        "--method",
        "knorm:budget=30%",
        "--method",
        "vnorm",
        "--method",
        "full",
    )
    told = made(result, Path("lens.html"))
    shown = [(m["name"], [c["budget"] for c in m["choices"]]) for m in told.data["methods"]]
    usual = ["20%", "33%", "50%", "75%"]
    assert shown == [("knorm", ["30%"]), ("vnorm", usual), ("full", [""])]


def test_answers_are_shown_if_they_are_asked_for(
    foveate: Foveate, llava: Path, picture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "lens.html"
    methods = ("--method", "knorm", "--method", "full", "--budget", "25%", "--budget", "100%")
    asked = ("lens", "--model", llava, "--image", picture, "--prompt", WORDS, *methods, "-o", out)
    told = made(foveate(*asked), out)
    assert told.data["answer"] is None
    result = foveate(*asked, "--answers", "--max-new-tokens", 5)
    told = made(result, out)
    given = [[c["answer"] for c in m["choices"]] for m in told.data["methods"]]
    assert [len(each) for each in given] == [2, 1]
    assert given[1] == [told.data["answer"]]
    same = sum(answer["same"] for each in given for answer in each)
    assert f"\n{same} of 3 answers are the full cache's.\n" in result.stdout
    message = refused(foveate(*asked, "--max-new-tokens", 5))
    assert "--max-new-tokens 5 needs answers" in message
    assert "add --answers" in message


def test_recommended_and_three_methods_stand_there_by_default(
    foveate: Foveate, llava: Path, tmp_path: Path
) -> None:
    image = tmp_path / "image.png"
    Image.new("RGB", (40, 30), "white").save(image)
    result = foveate(
        "lens",
        "--model",
        llava,
        "--image",
        image,
        "--prompt",
        3 * WORDS,
        "-o",
        tmp_path / "lens.html",
    )
    told = made(result, tmp_path / "lens.html")
    assert [m["name"] for m in told.data["methods"]] == [
        "recommended",
        "snapkv",
        "lookm",
        "mixkv",
    ]


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_loaded(
    foveate: Foveate, tmp_path: Path
) -> None:
    message = refused(foveate("lens", "--model", "no/such/model", "-o", tmp_path / "no" / "l.html"))
    assert "the lens cannot be written: --out" in message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--method", "snapvk"], "Did you mean 'snapkv'?"),
        (["--method", "snapkv", "--budget", "0%"], "keeps nothing"),
        (["--prompt", " "], "is empty"),
    ],
)
def test_what_cannot_be_shown_is_named(
    foveate: Foveate, llama: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    out = tmp_path / "lens.html"
    given = ["--prompt", WORDS] if "--prompt" not in arguments else []
    assert said in refused(foveate("lens", "--model", llama, *given, *arguments, "-o", out))
    assert not out.exists()
