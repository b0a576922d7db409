"""``foveate run``: what is compared, and how it is printed."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from foveate.cli.policies import ON_THE_DEMO, policies
from foveate.cli.prompt import DESCRIBE, QUESTION, question
from foveate.cli.run.measure import ComparisonRow, Measured, Times, against, measure
from foveate.cli.run.rows import known_answers, stored
from foveate.cli.tables import short
from foveate.compression import budgeting
from foveate.compression.composition import policy as policy_of
from foveate.compression.labels import budget_of, label
from foveate.hf.model.internals import CACHE
from foveate.loading.model import Loaded, load
from foveate.prompts.prompt import read
from foveate_demo import PROFILES, album
from tests.answers import certain

from .conftest import Foveate, refused

WORDS = "Which of these words is seen best, the first, the last, or the one that is looked at?"
Read = Callable[..., Any]


def chosen(specs: list[str], budgets: list[str]) -> list[tuple[str, str | None]]:
    """Names and budgets of the rows, without the full cache's."""
    first, *rest = policies(specs, budgets)
    assert (label(first), budget_of(first)) == ("full", None)
    return [(label(policy), budget_of(policy)) for policy in rest]


def test_recommended_and_three_methods_run_at_20_percent_by_default() -> None:
    assert chosen([], []) == [(name, "20%") for name in ("recommended", "snapkv", "lookm", "mixkv")]


def test_each_method_runs_at_each_budget() -> None:
    assert chosen(["knorm", "vnorm:budget=1%"], ["10%", "64"]) == [
        ("knorm", "10%"),
        ("knorm", "64"),
        ("vnorm", "10%"),
        ("vnorm", "64"),
    ]


def test_a_spec_keeps_its_own_budget_where_none_is_given() -> None:
    by_hand = "policy:score=recency(),budget=uniform(amount=8),select=top_k()"
    rows = chosen(["snapkv:window=16,budget=0.5", by_hand], [])
    assert rows[0] == ("snapkv:window=16", "50%")
    assert rows[1][0].startswith("policy:score=recency()")
    assert rows[1][1] == "8"


def test_a_shipped_profile_needs_no_folder_and_one_that_is_there_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = "keydiff(recent=0.25)+headkv.budget:budget=10%,profile=headkv.json"
    assert policies([spec], [])[1].budget.profile == str(PROFILES / "headkv.json")
    shutil.copy(PROFILES / "headkv.json", tmp_path)
    assert policies([spec], [])[1].budget.profile == "headkv.json"


@pytest.mark.parametrize("name", ["ab", "a, b (c)"])
def test_files_are_named_without_their_folders(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    shutil.copy(PROFILES / "headkv.json", folder)
    spec = policy_of("headkv:budget=10%", profile=str(folder / "headkv.json")).spec
    assert str(folder) in spec
    assert short(spec) == "headkv:budget=10%,profile=headkv.json"


def test_without_the_demos_package_the_line_that_brings_it_is_named(
    foveate: Foveate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveate_demo.PROFILES", tmp_path)
    for command in (["run"], ["lens"], ["eval", "--out", tmp_path / "results"]):
        message = refused(foveate(*command))
        assert "pip install 'foveate[demo]'" in message
    assert list(tmp_path.iterdir()) == []


def test_the_figures_are_of_what_is_shown_by_default() -> None:
    shown = [short(policy.spec) for policy in policies(ON_THE_DEMO, [])]
    told = stored()
    assert list(told.by_spec) == shown == ["full", *ON_THE_DEMO]
    assert told.questions == 100
    full, best, *others = told.by_spec.values()
    assert full.same == 100
    assert best.same >= 93
    assert max(one.same for one in others) < 70
    assert all(one.kv_bytes < 0.105 * full.kv_bytes for one in (best, *others))


def test_nothing_runs_twice() -> None:
    assert chosen(["full", "knorm:budget=20%", "knorm"], ["20%"]) == [("knorm", "20%")]


def test_divergence_is_the_first_token_that_differs() -> None:
    row = ComparisonRow("knorm", "20%", "", 1.0, 1, 0.0, 0.0, None, None)
    for ids, expected in (([5, 6, 7], None), ([5, 9, 7], 1), ([5, 6], 2), ([5, 6, 7, 8], 3)):
        assert against(row, ids, [5, 6, 7]).first_divergence == expected


def test_rows_are_timed_in_turns_and_give_medians(
    as_json: Read, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefills, order = iter([7.0, 9.0, 8.0, 3.0, 1.0, 4.0, 2.0]), []

    def drawn(loaded: Loaded, prompt: Any, policy: Any, *rest: Any) -> Measured:
        order.append(policy.name)
        one = measure(loaded, prompt, policy, *rest)
        return one._replace(turns=(Times(next(prefills), 0.5, [0.002 * (len(order) - 1)]),))

    monkeypatch.setattr("foveate.cli.run.measure.measure", drawn)
    asked = ("run", "--model", llama, "--prompt", WORDS, "--method", "knorm:budget=50%")
    full, knorm = as_json(*asked, "--max-new-tokens", 2)["rows"]
    assert order == ["full", *["full", "knorm"] * 3]  # the first warms up
    assert (full["prefill_s"], knorm["prefill_s"]) == (4.0, 2.0)
    assert (full["decode_ms_per_token"], knorm["decode_ms_per_token"]) == (6.0, 8.0)
    assert full["compress_s"] == knorm["compress_s"] == 0.5


def test_json_holds_the_measured_rows(as_json: Read, llama: Path) -> None:
    result = as_json(
        "run",
        "--model",
        llama,
        "--prompt",
        WORDS,
        "--method",
        "streaming_llm",
        "--budget",
        "25%",
        "--budget",
        "10",
        "--max-new-tokens",
        "6",
    )
    assert list(result) == ["model", "prompt", "rows"]
    assert result["model"] == str(llama)
    tokens = result["prompt"]["tokens"]
    assert result["prompt"] == {"tokens": tokens, "visual_tokens": 0, "images": 0, "videos": 0}
    rows = result["rows"]
    assert [(row["method"], row["budget"]) for row in rows] == [
        ("full", None),
        ("streaming_llm", "25%"),
        ("streaming_llm", "10"),
    ]
    assert [row["kept_tokens"] for row in rows] == [tokens, tokens // 4, 10]
    for row in rows:
        assert list(row) == [
            "method",
            "budget",
            "answer",
            "kept_tokens",
            "kv_bytes",
            "prefill_s",
            "compress_s",
            "decode_ms_per_token",
            "first_divergence",
            "visual_computed",
            "remaining",
        ]
        assert row["visual_computed"] is None  # nothing is pruned
        assert row["prefill_s"] > 0
        assert row["compress_s"] >= 0
        assert row["decode_ms_per_token"] > 0


def test_the_full_row_is_what_the_model_says_on_its_own(as_json: Read, llama: Path) -> None:
    model, words = AutoModelForCausalLM.from_pretrained(llama), AutoTokenizer.from_pretrained(llama)
    inputs = words.apply_chat_template(
        [{"role": "user", "content": WORDS}],
        return_dict=True,
        add_generation_prompt=True,
        return_tensors="pt",
    )
    length = inputs["input_ids"].shape[1]
    with torch.no_grad():
        cache = model(**inputs, use_cache=True)[CACHE]
    how = {"output_logits": True, "return_dict_in_generate": True}
    told = model.generate(**inputs, max_new_tokens=12, do_sample=False, **how)
    sure = certain(told.logits)
    expected = words.decode(told.sequences[0, length:][:sure], skip_special_tokens=True).strip()

    rows = as_json(
        "run",
        "--model",
        llama,
        "--prompt",
        WORDS,
        "--method",
        "knorm:budget=100%",
        "--max-new-tokens",
        12,
    )["rows"]
    whole = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    for row in rows:  # a policy that keeps everything changes nothing either
        assert row["answer"].startswith(expected)
        assert row["answer"] == expected or sure < 12
        assert row["first_divergence"] is None
        assert row["kv_bytes"] == whole


def test_images_stand_in_front_of_the_prompt(as_json: Read, llava: Path, picture: Path) -> None:
    result = as_json(
        "run",
        "--model",
        llava,
        "--image",
        picture,
        "--image",
        picture,
        "--method",
        "knorm",
        "--max-new-tokens",
        3,
    )
    assert result["prompt"]["images"] == 2
    assert result["prompt"]["visual_tokens"] == 18
    words = len("user : ") + len(DESCRIBE) + len("\nassistant : ")
    assert result["prompt"]["tokens"] == words + 18


def test_images_may_be_placed_in_the_prompt(as_json: Read, llava: Path, picture: Path) -> None:
    common = ("run", "--model", llava, "--image", picture, "--method", "knorm:budget=30")
    common = (*common, "--max-new-tokens", 8)
    behind = as_json(*common, "--prompt", "What is this? <image>")
    before = as_json(*common, "--prompt", "<image>What is this? ")
    assert behind["prompt"] == before["prompt"]
    assert behind["rows"][0]["answer"] != before["rows"][0]["answer"]


def test_terminals_get_no_advice_for_python(
    foveate: Foveate,
    llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(budgeting, "_warned", set())
    how = ("--prompt", "x" * 60, "--method", "snapkv:budget=20", "--max-new-tokens", 2)
    result = foveate("run", "--model", llama, *how, "--rounds", 2)
    assert result.exit_code == 0, result.stderr
    assert "Each method answers 2 times (--rounds)." in result.stderr
    (warning,) = caplog.messages
    assert "its budget is raised" in warning
    assert "strict" not in warning
    assert "session" not in warning
    assert not logging.getLogger("foveate").filters


def test_a_vision_model_reads_plain_text(as_json: Read, llava: Path) -> None:
    result = as_json(
        "run", "--model", llava, "--prompt", WORDS, "--method", "knorm", "--max-new-tokens", 2
    )
    assert result["prompt"]["visual_tokens"] == 0


def test_models_without_a_chat_template_read_the_plain_prompt(
    as_json: Read, llama: Path, llava: Path, picture: Path, tmp_path: Path
) -> None:
    for directory, images in ((llama, []), (llava, ["--image", picture])):
        bare = shutil.copytree(directory, tmp_path / directory.name)
        (bare / "chat_template.jinja").unlink()
        result = as_json(
            "run",
            "--model",
            bare,
            "--prompt",
            WORDS,
            *images,
            "--method",
            "knorm",
            "--max-new-tokens",
            2,
        )
        assert result["prompt"]["tokens"] == len(WORDS) + (9 if images else 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU computes in float16")
@pytest.mark.parametrize(
    ("stored", "used"), [("float16", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_only_float16_is_widened_on_a_cpu(
    llava: Path, picture: Path, tmp_path: Path, stored: str, used: torch.dtype
) -> None:
    half = shutil.copytree(llava, tmp_path / "half")
    model = AutoModelForImageTextToText.from_pretrained(llava, dtype=getattr(torch, stored))
    model.save_pretrained(half)
    loaded = load(str(half))
    asked = read(loaded, *question(str(half), WORDS, [picture]))
    assert loaded.model.dtype == used
    assert asked.inputs["pixel_values"].dtype == used
    measured = measure(loaded, asked, policies(["full"], [])[0], 2, lambda: None)
    assert measured.row.kept_tokens == asked.tokens
    assert torch.equal(measured.kept_share, torch.ones(asked.tokens))


def test_an_answer_of_one_token_has_no_decoding_speed(as_json: Read, llama: Path) -> None:
    result = as_json(
        "run", "--model", llama, "--prompt", WORDS, "--method", "knorm", "--max-new-tokens", 1
    )
    assert {row["decode_ms_per_token"] for row in result["rows"]} == {None}


def test_the_table_fits_the_terminal_and_holds_the_answers(
    foveate: Foveate, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = 80
    monkeypatch.setenv("COLUMNS", str(columns))
    arguments = ("run", "--model", llama, "--prompt", WORDS, "--method", "streaming_llm:sinks=2")
    result = foveate(*arguments, "--max-new-tokens", 80)
    assert result.exit_code == 0, result.stderr
    table, _, after = result.stdout.partition("\n\nWith its profile: ")
    assert f"foveate calibrate recommended --model {llama}\n" in after
    assert f"foveate eval --model {llama} --out results\n" in after
    lines = table.splitlines()
    assert max(len(line) for line in lines) <= columns
    assert any(line.startswith("full ") and "never" in line for line in lines)
    assert any(line.startswith("streaming_llm:sinks=2 ") and "20%" in line for line in lines)
    assert WORDS.split()[-1] in result.stdout
    assert "…" not in result.stdout
    assert "It is" not in result.stdout  # nothing is known of this question
    assert result.stderr == "Each method answers 3 times (--rounds).\n"  # no progress bar


def test_a_line_says_what_each_part_of_one_budget_leaves(
    foveate: Foveate, as_json: Read, llava: Path, picture: Path
) -> None:
    spec = "divprune.prune(keep=auto)+snapkv+kivi(bits=auto,residual=2):budget=20%,window=2"
    asked = ("run", "--model", llava, "--image", picture, "--prompt", WORDS, "--method", spec)
    how = ("--max-new-tokens", 2, "--rounds", 1)
    _, row = as_json(*asked, *how)["rows"]
    left = row["remaining"]
    assert round(left["computed"], 4) == row["visual_computed"] < 1
    assert left["bytes"] <= 0.2
    assert 4 <= left["bits"] < left["made"] == 32
    said = " ".join(foveate(*asked, *how).stdout.split())

    assert f"of {left['visual']} visual tokens computed ({left['computed']:.0%}, mean" in said
    assert f"{left['pairs']:.1%} of the pairs held; {left['bits']:.1f} of 32 bits" in said
    assert f"{left['bytes']:.1%} of the bytes; prefill in" in said


@pytest.fixture
def tiny_demo(llava: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny model in the place of the demo model, and a method that needs no profile of it."""
    tiny, right = load(str(llava)), iter((True, True, False, False))

    def answers(loaded: Loaded, *rest: Any) -> Any:
        one = measure(loaded, *rest)
        said = album.ANSWER if rest[2] > 2 and next(right, False) else one.row.answer
        return one._replace(row=replace(one.row, answer=said))

    monkeypatch.setattr("foveate.loading.model.load", lambda name, *_: tiny)
    monkeypatch.setattr("foveate.cli.run.measure.measure", answers)
    shown = ("full", "knorm:budget=10%", "vnorm:budget=10%", "lookm:budget=10%")
    told = stored()
    by_spec = dict(zip(shown, told.by_spec.values(), strict=True))
    monkeypatch.setattr("foveate.cli.run.rows.stored", lambda: told._replace(by_spec=by_spec))
    monkeypatch.setattr("foveate.cli.policies.ON_THE_DEMO", shown[1:])


@pytest.mark.usefixtures("tiny_demo")
def test_the_demos_answers_are_judged_and_its_policies_figures_shown(foveate: Foveate) -> None:
    result = foveate("run", "--max-new-tokens", 4)
    assert result.exit_code == 0, result.stderr
    assert result.stderr.count("\n") == 2
    assert "about 20 s" in result.stderr
    said = [line for line in result.stdout.splitlines() if re.search(r"(right|wrong) +\d", line)]
    for line, (spec, found) in zip(said, known_answers().evaluation.by_spec.items(), strict=True):
        assert line.split()[0] == spec.split(":")[0]
        assert line.split()[-2:] == [str(found.same), str(found.right)]
    assert [line.split()[-3] for line in said] == ["right", "right", "wrong", "wrong"]
    assert f"The right answer: {album.ANSWER}" in result.stdout


@pytest.mark.usefixtures("tiny_demo")
def test_json_says_what_is_known(as_json: Read) -> None:
    result = as_json("run", "--max-new-tokens", 4)
    told = known_answers().evaluation
    assert result["evaluation"] == {
        "right_answer": album.ANSWER,
        "task": told.task,
        "protocol": told.protocol,
        "seed": told.seed,
        "questions": 100,
    }
    assert [row["right"] for row in result["rows"]] == [True, True, False, False]
    found = [(row["same_answers"], row["right_answers"]) for row in result["rows"]]
    assert found == [(one.same, one.right) for one in told.by_spec.values()]


@pytest.mark.usefixtures("tiny_demo")
@pytest.mark.parametrize("own", [("--prompt", "What?"), ("--method", "knorm"), ("--budget", "50%")])
def test_nothing_is_known_of_anything_else(as_json: Read, own: tuple[str, str]) -> None:
    result = as_json("run", "--max-new-tokens", 4, *own)
    assert "evaluation" not in result
    assert all("right" not in row for row in result["rows"])


def test_without_a_prompt_a_text_model_answers_about_the_packaged_text(
    as_json: Read, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: torch.dtype) -> tuple[Any, Any]:
        model = AutoModelForCausalLM.from_pretrained(llama)
        return model, AutoTokenizer.from_pretrained(llama)

    monkeypatch.setattr("foveate_demo.smollm2.load", load)
    result = as_json(
        "run", "--model", "smollm2", "--method", "streaming_llm", "--max-new-tokens", 2
    )
    assert result["model"] == "SmolLM2-135M-Instruct"
    assert result["prompt"]["tokens"] > 5000  # of one byte each, in the tiny model's tokenizer


@pytest.mark.parametrize("model", ["demo", "reader"])
def test_models_that_read_pages_are_asked_about_pages(model: str) -> None:
    _, images = question(model, None, [])
    assert len(images) == 3


def test_a_directory_with_the_name_of_a_model_is_asked_about_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "reader"):
        Path(name).mkdir()
        _, images = question(name, None, [])
        assert not images


def test_the_default_text_is_a_thousand_words_and_holds_the_answer() -> None:
    text, images = question("smollm2", None, [])
    assert images == []
    assert text.endswith(QUESTION)
    assert 900 < len(text.split()) < 1150
    middle = text.index("The Unexpected Visitor") / len(text)
    assert 0.4 < middle < 0.75


def test_the_picture_shows_what_was_kept(
    as_json: Read, llava: Path, picture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "kept.png"
    rows = as_json(
        "run",
        "--model",
        llava,
        "--image",
        picture,
        "--image",
        picture,
        "--prompt",
        WORDS,
        "--method",
        "streaming_llm:sinks=0",
        "--budget",
        "20%",
        "--max-new-tokens",
        2,
        "--picture",
        out,
    )["rows"]
    assert len(rows) == 2
    with Image.open(out) as page:
        colours = np.asarray(page.convert("RGB")).astype(float)
    full, kept = np.array_split(colours[:-80], 2)  # without the legend
    clear = [(np.abs(band[..., 0] - band[..., 2]) > 100).mean() for band in (full, kept)]
    assert clear[0] > 0.3
    assert clear[1] == 0  # the images stand in front: none of them is kept


def test_the_picture_marks_what_the_processor_cuts_off(
    as_json: Read, llava: Path, tmp_path: Path
) -> None:
    """The tiny LLaVA's processor keeps the middle of a wide image, as LLaVA-1.5's does."""
    Image.new("RGB", (90, 30), "red").save(tmp_path / "wide.png")
    out = tmp_path / "kept.png"
    common = ("run", "--model", llava, "--image", tmp_path / "wide.png", "--prompt", WORDS)
    as_json(*common, "--method", "full", "--max-new-tokens", 2, "--picture", out)
    with Image.open(out) as page:
        red = (np.asarray(page.convert("RGB")) == (255, 0, 0)).all(-1)
    columns = np.nonzero(red.any(0))[0]
    assert (columns.min(), columns.max() + 1) == (22 + 140, 22 + 280)


def test_a_picture_of_a_model_whose_patches_are_not_known_says_so(
    foveate: Foveate, llava: Path, picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foveate.models.token_grids.find.of_each", lambda *_: [])
    out = tmp_path / "kept.png"
    common = ("run", "--model", llava, "--image", picture, "--prompt", WORDS, "--picture", out)
    result = foveate(*common, "--method", "full", "--max-new-tokens", 2)
    assert result.exit_code == 0, result.stderr
    said = "".join(result.stderr.split())
    assert "notknownforllavaandCLIPImageProcessorPil" in said
    assert out.is_file()
