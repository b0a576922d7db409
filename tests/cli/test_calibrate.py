"""``foveate calibrate``: from prompts to a file that ``foveate run`` takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import foveate as library
from foveate.cli.prompt import QUESTION, Which, passages, prompts_of
from foveate.errors import InvalidInput
from foveate.profiles.profile import Profile

from .conftest import Foveate, refused

WORDS = "Which of these words is seen best, the first, the last, or the one that is looked at?"
TEXTS = [WORDS, WORDS.upper() + " Or not?", "The second is seen best. " + WORDS, WORDS[::-1]]
Read = Callable[..., Any]
Prompts = Callable[..., Path]


@pytest.fixture
def prompts(tmp_path: Path) -> Prompts:
    """Writes a file of JSON lines: texts as prompts, other things as they are."""

    def write(*lines: object) -> Path:
        entries = [{"prompt": line} if isinstance(line, str) else line for line in lines]
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
        return path

    return write


def measured(result: Any, out: Path) -> dict[str, Any]:
    """The profile that was written."""
    assert result.exit_code == 0, (result.stderr, result.exception)
    profile: dict[str, Any] = json.loads(out.read_text())
    spec = f"{profile['method']}:budget={profile['budget'] or '20%'},profile={out}"
    assert f"\nSpec with this profile: {spec}\n" in result.stdout
    assert " on average\n" in result.stdout
    assert result.stdout.splitlines()[-1].endswith(f"--method {spec}")
    assert result.stdout.startswith(
        f"{out}: {profile['method']} on {profile['model']},\n3 layers, "
    )
    assert "\x1b" not in result.stderr
    return profile


def in_python(directory: Path, spec: str, texts: list[str]) -> Profile:
    """The same with the library alone."""
    model: Any = AutoModelForCausalLM.from_pretrained(directory)
    words = AutoTokenizer.from_pretrained(directory)
    inputs = [
        words.apply_chat_template(
            [{"role": "user", "content": text}],
            return_dict=True,
            add_generation_prompt=True,
            return_tensors="pt",
        )
        for text in texts
    ]
    return library.calibrate(model, spec, inputs)


# ------------------------------------------------------------------- what is written


def test_the_file_is_one_that_run_accepts_with_its_model_and_budget(
    foveate: Foveate, as_json: Read, llama: Path, prompts: Prompts, tmp_path: Path
) -> None:
    out = tmp_path / "ratios.json"
    result = foveate(
        "calibrate",
        "prefixkv:budget=50%",
        "--model",
        llama,
        "--prompts",
        prompts(*TEXTS),
        "--out",
        out,
    )
    profile = measured(result, out)
    assert profile["model"] == llama.name
    assert (profile["budget"], profile["samples"]) == ("50%", 4)
    assert len(set(profile["by_layer"])) > 1
    asked = ("run", "--model", llama, "--prompt", WORDS, "--max-new-tokens", 2)
    rows = as_json(*asked, "--method", f"prefixkv:profile={out},budget=50%")["rows"]
    tokens = rows[0]["kept_tokens"]
    assert rows[1]["method"] == f"prefixkv:profile={out.name}"
    assert rows[1]["budget"] == "50%"
    assert rows[1]["kept_tokens"] == tokens // 2
    again = as_json(*asked, "--method", f"prefixkv:profile={out}", "--budget", "50%")["rows"]
    assert again[1]["answer"] == rows[1]["answer"]


def test_run_refuses_the_file_at_another_budget_and_on_another_model(
    foveate: Foveate, llama: Path, llava: Path, prompts: Prompts, tmp_path: Path
) -> None:
    out = tmp_path / "ratios.json"
    foveate(
        "calibrate",
        "prefixkv:budget=50%",
        "--model",
        llama,
        "--prompts",
        prompts(*TEXTS),
        "--out",
        out,
    )
    asked = ("run", "--prompt", WORDS, "--max-new-tokens", 2, "--method", f"prefixkv:profile={out}")
    message = refused(foveate(*asked, "--model", llama, "--budget", "40%"))
    assert "at the budget 50%, not 40%" in message
    assert "foveate calibrate prefixkv" in message
    result = foveate(*asked, "--model", llava, "--budget", "50%", "--json")
    message = refused(result)
    assert f"of the model {llama.name!r}, not of {llava.name!r}" in message


@pytest.mark.parametrize("spec", ["prefixkv:budget=50%", "mixkv:budget=50%,window=4"])
def test_it_measures_what_the_library_measures(
    foveate: Foveate, llama: Path, prompts: Prompts, tmp_path: Path, spec: str
) -> None:
    out = tmp_path / "profile.json"
    result = foveate(
        "calibrate", spec, "--model", llama, "--prompts", prompts(*TEXTS), "--out", out
    )
    profile, expected = measured(result, out), in_python(llama, spec, TEXTS)
    for ours, theirs in zip(profile["by_layer"], expected.by_layer, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-7)


def test_the_file_is_named_after_the_method_if_no_name_is_given(
    foveate: Foveate, llama: Path, prompts: Prompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = prompts(*TEXTS[:1])
    for name in ("prefixkv", "mixkv"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        result = foveate("calibrate", f"{name}:budget=50%", "--model", llama, "--prompts", path)
        assert measured(result, Path(f"{name}.json"))["method"] == name
        assert [file.name for file in (tmp_path / name).iterdir()] == [f"{name}.json"]


def test_a_spec_without_a_budget_is_measured_at_the_budget_that_run_takes(
    foveate: Foveate, llama: Path, prompts: Prompts, tmp_path: Path
) -> None:
    out = tmp_path / "profile.json"
    asked = ("--model", llama, "--prompts", prompts(*TEXTS[:1]), "--out", out)
    assert measured(foveate("calibrate", "prefixkv", *asked), out)["budget"] == "20%"
    by_hand = in_python(llama, "prefixkv:budget=20%", TEXTS[:1])
    assert json.loads(out.read_text())["by_layer"] == pytest.approx(by_hand.by_layer, rel=1e-5)


@pytest.mark.parametrize(("given", "read"), [(3, 3), (9, 4)])
def test_samples_limits_how_many_prompts_are_read(
    foveate: Foveate, llama: Path, prompts: Prompts, tmp_path: Path, given: int, read: int
) -> None:
    out = tmp_path / "profile.json"
    result = foveate(
        "calibrate",
        "prefixkv:budget=50%",
        "--model",
        llama,
        "--out",
        out,
        "--prompts",
        prompts(*TEXTS),
        "--samples",
        given,
    )
    profile = measured(result, out)
    assert profile["samples"] == read
    expected = in_python(llama, "prefixkv:budget=50%", TEXTS[:read])
    assert profile["by_layer"] == pytest.approx(expected.by_layer, rel=1e-5)


def numbered(tmp_path: Path) -> Path:
    """Prompts of 1 to 40 letters."""
    path = tmp_path / "numbered.jsonl"
    path.write_text("".join(json.dumps({"prompt": "a" * n}) + "\n" for n in range(1, 41)))
    return path


def test_a_seed_draws_from_the_whole_file_and_fewer_samples_are_among_more(tmp_path: Path) -> None:
    path = numbered(tmp_path)

    def drawn(samples: int, seed: int | None) -> list[int]:
        return [len(one.text("prompt")) for one in prompts_of(path, Which(samples, seed))]

    assert drawn(5, None) == [1, 2, 3, 4, 5]
    assert drawn(10, 1) == drawn(10, 1) != drawn(10, 2)
    assert drawn(10, 1)[:5] == drawn(5, 1)
    assert max(drawn(10, 1)) > 10
    assert sorted(drawn(99, 3)) == list(range(1, 41))


def test_prompts_are_chosen_by_their_length(tmp_path: Path) -> None:
    path = numbered(tmp_path)
    some = prompts_of(path, Which(3, None, longer_than=10, up_to=20))
    assert [len(one.text("prompt")) for one in some] == [11, 12, 13]
    longest = prompts_of(path, Which(99, 4, longer_than=38))
    assert sorted(len(one.text("prompt")) for one in longest) == [39, 40]
    with pytest.raises(InvalidInput, match="no prompt of more than 40 letters and at most 90"):
        prompts_of(path, Which(3, None, longer_than=40, up_to=90))


def test_what_chooses_from_a_file_asks_for_one(foveate: Foveate) -> None:
    for option in (("--seed", 1), ("--longer-than", 5), ("--up-to", 5)):
        message = refused(foveate("calibrate", "prefixkv:budget=50%", *option))
        assert "add --prompts FILE" in message


def test_ten_prompts_are_read_unless_told_otherwise(
    foveate: Foveate, llama: Path, prompts: Prompts, tmp_path: Path
) -> None:
    out = tmp_path / "profile.json"
    result = foveate(
        "calibrate",
        "prefixkv:budget=50%",
        "--model",
        llama,
        "--out",
        out,
        "--prompts",
        prompts(*TEXTS * 3),
    )
    assert measured(result, out)["samples"] == 10


def test_without_prompts_passages_of_the_packaged_text_are_read(
    foveate: Foveate, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_: torch.dtype) -> tuple[Any, Any]:
        model = AutoModelForCausalLM.from_pretrained(llama)
        return model, AutoTokenizer.from_pretrained(llama)

    monkeypatch.setattr("foveate_demo.smollm2.load", load)
    out = tmp_path / "profile.json"
    result = foveate("calibrate", "prefixkv:budget=50%", "--samples", 2, "--out", out)
    profile = measured(result, out)
    assert profile["samples"] == 2
    texts = [f"{text}\n\n{QUESTION}" for text in passages(2)]
    assert texts[0] != texts[1]
    expected = in_python(llama, "prefixkv:budget=50%", texts)
    assert profile["by_layer"] == pytest.approx(expected.by_layer, rel=1e-4)


def test_passages_begin_at_other_paragraphs_and_are_all_of_one_length() -> None:
    paragraphs = passages(100)
    assert passages(5) == paragraphs[:5]
    assert len({text.split("\n\n")[0] for text in paragraphs}) == len(paragraphs)
    assert {text.count("\n\n") + 1 for text in paragraphs} == {2 * len(paragraphs) // 3}


# ------------------------------------------------------------------- images


def test_prompts_have_images_or_none_and_their_files_stand_beside_the_prompts(
    foveate: Foveate, llava: Path, picture: Path, prompts: Prompts, tmp_path: Path
) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "one.png").write_bytes(picture.read_bytes())
    path = prompts(
        {"prompt": WORDS, "images": ["pictures/one.png"]},
        {
            "prompt": "<image> and " + WORDS + " and <image>",
            "images": ["pictures/one.png", str(picture)],
        },
        {"prompt": WORDS, "images": []},
        {"prompt": WORDS},
    )
    out = tmp_path / "profile.json"
    asked = ("calibrate", "prefixkv:budget=50%", "--model", llava, "--prompts", path, "--out", out)
    assert "Data may name files of its own folder only" in refused(foveate(*asked))
    profile = measured(foveate(*asked, "--allow-outside"), out)
    assert (profile["model"], profile["samples"]) == (llava.name, 4)
    plain = measured(foveate(*asked, "--prompts", prompts(WORDS, WORDS)), out)
    assert profile["by_layer"] != plain["by_layer"]


@pytest.mark.parametrize("name", ["missing.png", "text.png"])
def test_an_image_that_cannot_be_read_is_refused_by_name(
    foveate: Foveate, llava: Path, prompts: Prompts, tmp_path: Path, name: str
) -> None:
    (tmp_path / "text.png").write_text("no picture")
    path = prompts({"prompt": WORDS, "images": [name]})
    result = foveate("calibrate", "prefixkv", "--model", llava, "--prompts", path)
    message = refused(result)
    assert f"{path}, line 1" in message
    assert name in message


def test_images_for_a_text_model_are_refused(
    foveate: Foveate, llama: Path, picture: Path, prompts: Prompts
) -> None:
    path = prompts({"prompt": WORDS, "images": [str(picture)]})
    result = foveate(
        "calibrate", "prefixkv", "--model", llama, "--prompts", path, "--allow-outside"
    )
    assert "reads text only" in refused(result)


# ------------------------------------------------------------------- prompts that are refused


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "no json",
        "[1]",
        "3",
        "null",
        '"text"',
        "{}",
        '{"text": "a"}',
        '{"prompt": "a", "images": 5}',
        '{"prompt": "a", "images": null}',
        '{"prompt": "a", "images": [5]}',
        '{"prompt": 5}',
        '{"prompt": null}',
        '{"prompt": ["a"]}',
    ],
)
def test_a_line_that_is_no_prompt_is_refused_by_its_number(
    foveate: Foveate, llama: Path, tmp_path: Path, line: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": WORDS}) + f"\n\n{line}\n")
    out = tmp_path / "profile.json"
    result = foveate("calibrate", "prefixkv", "--model", llama, "--prompts", path, "--out", out)
    assert f"{path}, line 3: " in refused(result)
    assert not out.exists()


@pytest.mark.parametrize("entry", [{"prompt": ""}, {"prompt": " \n"}], ids=str)
def test_an_empty_prompt_is_refused_by_the_number_of_its_line(
    foveate: Foveate, llama: Path, prompts: Prompts, entry: dict[str, str]
) -> None:
    path = prompts(WORDS, entry)
    result = foveate("calibrate", "prefixkv", "--model", llama, "--prompts", path)
    message = refused(result)
    assert "empty" in message
    assert f"{path}, line 2" in message


def test_images_that_are_a_text_instead_of_a_list_are_refused_by_the_number_of_the_line(
    foveate: Foveate, llava: Path, picture: Path, prompts: Prompts
) -> None:
    path = prompts({"prompt": WORDS, "images": str(picture)})
    result = foveate("calibrate", "prefixkv", "--model", llava, "--prompts", path)
    assert f"{path}, line 1: " in refused(result)


@pytest.mark.parametrize("method", ["q_filters", "expected_attention", "kvzap", "recommended"])
def test_profiles_of_tensors_are_made_by_name_and_read_by_run(
    foveate: Foveate, as_json: Read, llama: Path, prompts: Prompts, tmp_path: Path, method: str
) -> None:
    out = tmp_path / f"{method}.safetensors"
    asked = ("calibrate", method, "--model", llama, "--prompts", prompts(*TEXTS), "--out", out)
    result = foveate(*asked)
    assert result.exit_code == 0, (result.stderr, result.exception)
    head, count, says, *_ = result.stdout.splitlines()
    assert (head, count) == (f"{out}: {method} on {llama.name},", "3 layers, 4 prompts")
    fitted = {"recommended": "fitted to damage", "kvzap": "fitted to contribution"}
    assert says.startswith(fitted.get(method, "of each layer: "))
    spec = f"{method}:profile={out},budget=50%"
    asked = ("run", "--model", llama, "--prompt", WORDS, "--max-new-tokens", 2)
    rows = as_json(*asked, "--method", spec)["rows"]
    assert rows[1]["kept_tokens"] == rows[0]["kept_tokens"] // 2
    assert "no parameter 'budgte'" in refused(foveate("calibrate", f"{method}:budgte=20%"))


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\x85"])
def test_a_line_ends_where_json_lines_end_and_nowhere_else(
    foveate: Foveate, llama: Path, tmp_path: Path, character: str
) -> None:
    path, out = tmp_path / "prompts.jsonl", tmp_path / "profile.json"
    entry = json.dumps({"prompt": WORDS + character + WORDS}, ensure_ascii=False)
    path.write_text(f"{entry}\r\n{entry}", encoding="utf-8")
    result = foveate("calibrate", "prefixkv", "--model", llama, "--prompts", path, "--out", out)
    assert measured(result, out)["samples"] == 2


@pytest.mark.parametrize("text", ["", "\n", "  \n\n"])
def test_an_empty_file_is_refused(foveate: Foveate, llama: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(text)
    result = foveate("calibrate", "prefixkv", "--model", llama, "--prompts", path)
    message = refused(result)
    assert f"the prompts file {str(path)!r} is empty" in message
    assert "write one prompt per line" in message


@pytest.mark.parametrize("kind", ["missing", "a directory", "no text"])
def test_a_file_that_cannot_be_read_is_refused_by_name(
    foveate: Foveate, llama: Path, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    if kind == "a directory":
        path.mkdir()
    elif kind == "no text":
        path.write_bytes(b"\xff\xfe\x00")
    result = foveate("calibrate", "prefixkv", "--model", llama, "--prompts", path)
    assert f"{str(path)!r} cannot be read" in refused(result)


def test_prompts_that_fit_the_budget_are_refused(
    foveate: Foveate, llama: Path, prompts: Prompts
) -> None:
    result = foveate(
        "calibrate", "prefixkv:budget=500", "--model", llama, "--prompts", prompts(WORDS)
    )
    assert "fits the budget 500" in refused(result)


def test_zero_samples_are_refused(foveate: Foveate) -> None:
    result = foveate("calibrate", "prefixkv", "--samples", 0)
    assert result.exit_code == 2
    assert "--samples" in result.stderr


# ------------------------------------------------------------------- methods that are refused


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            "snapkv",
            "snapkv has nothing to calibrate. Known: expected_attention, fast_kvzip, kvzap, ",
        ),
        ("full", "full has nothing to calibrate. Known: expected_attention, fast_kvzip, kvzap, "),
        ("lookm:budget=20%", "lookm has nothing to calibrate."),
        ("prefixvk", "no method named 'prefixvk'. Did you mean 'prefixkv'?"),
        ("mixkv+prefixvk", "no method named 'prefixvk'. Did you mean 'prefixkv'?"),
        ("prefixkv:budgte=20%", "Did you mean 'budget'?"),
        ("prefixkv:budget=0%", "'0%' keeps nothing"),
        ("prefixkv:budget", "is not of the form key=value"),
        ("", "no method"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_before_the_model_is_loaded(
    foveate: Foveate, monkeypatch: pytest.MonkeyPatch, spec: str, says: str
) -> None:
    monkeypatch.delattr("foveate_demo.smollm2.load")
    assert says in refused(foveate("calibrate", spec))


def test_a_place_that_cannot_be_written_to_is_refused_by_name(
    foveate: Foveate, llama: Path, prompts: Prompts, tmp_path: Path
) -> None:
    for out in (tmp_path / "nowhere" / "profile.json", tmp_path):
        result = foveate(
            "calibrate",
            "prefixkv:budget=50%",
            "--model",
            llama,
            "--prompts",
            prompts(WORDS),
            "--out",
            out,
        )
        assert str(out) in refused(result)


def test_the_program_lists_the_command(foveate: Foveate) -> None:
    assert "calibrate" in foveate("--help").stdout
