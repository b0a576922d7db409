"""Bad input to ``foveate run``: one line that names the value and the way out."""

from __future__ import annotations

import ast
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import foveate as library
import foveate_demo
import foveate_lab
from foveate_lab.eval.executors import find_executor
from foveate_lab.eval.executors.ray import Worker
from tests import zoo

from .conftest import Foveate

WORDS = "Which of these words is seen best, the first or the last?"


def refused(foveate: Foveate, *arguments: object) -> str:
    """The error message, after a check of what every refusal has in common."""
    result = foveate("run", *arguments)
    assert result.exit_code == 2, (result.stdout, result.exception)
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    message: str = result.stderr.splitlines()[-1]
    assert message.startswith("Error: ")
    return message


@pytest.mark.parametrize("name", ["missing.png", "folder", "text.png", "cut.png"])
def test_image_files_that_cannot_be_read(
    foveate: Foveate, tmp_path: Path, llava: Path, picture: Path, name: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "cut.png").write_bytes(picture.read_bytes()[:60])
    message = refused(foveate, "--model", llava, "--image", tmp_path / name)
    assert str(tmp_path / name) in message


@pytest.mark.parametrize(
    ("command", "way"),
    [("run", "Put a question after --prompt, in quotes."), ("doctor", "Leave it out.")],
)
def test_a_word_too_many_is_named(foveate: Foveate, command: str, way: str) -> None:
    model = ("a-model",) if command == "doctor" else ()
    result = foveate(command, *model, "What is the total?")
    assert result.exit_code == 2
    text = f"Error: 'What is the total?' belongs to no option of foveate {command}. {way}\n"
    assert result.stderr == text


def test_a_directory_that_does_not_exist(foveate: Foveate, tmp_path: Path) -> None:
    message = refused(foveate, "--model", tmp_path / "nowhere")
    assert f"{str(tmp_path / 'nowhere')!r} does not exist" in message
    assert "hub id" in message


def test_a_file_instead_of_a_directory(foveate: Foveate, picture: Path) -> None:
    assert "is a file" in refused(foveate, "--model", picture)


def test_a_directory_without_a_model(foveate: Foveate, tmp_path: Path) -> None:
    message = refused(foveate, "--model", tmp_path)
    assert "no config.json" in message
    assert "save_pretrained" in message


@pytest.mark.parametrize("text", ["{", "{}", json.dumps({"model_type": "nobody_knows"})])
def test_a_config_that_cannot_be_read(foveate: Foveate, tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert str(tmp_path) in refused(foveate, "--model", tmp_path)


def test_a_directory_without_weights(foveate: Foveate, llama: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((llama / "config.json").read_text())
    message = refused(foveate, "--model", tmp_path)
    assert f"no weights found at {str(tmp_path)!r}" in message


def test_weights_that_were_cut_off(foveate: Foveate, llama: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(llama, tmp_path / "broken")
    weights = (llama / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[:-100])
    assert "no weights found" in refused(foveate, "--model", broken)


def test_a_directory_without_a_tokenizer(foveate: Foveate, llama: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        shutil.copy(llama / name, tmp_path / name)
    assert "no tokenizer found" in refused(foveate, "--model", tmp_path)


def test_a_hub_that_cannot_be_reached(foveate: Foveate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = refused(foveate, "--model", "nobody/has-this-model")
    assert "no directory and no hub model named 'nobody/has-this-model'" in message


def test_a_model_without_a_layer_that_grows(foveate: Foveate, tmp_path: Path) -> None:
    zoo.build("sliding").save_pretrained(tmp_path)
    assert "none of its layers has full attention" in refused(foveate, "--model", tmp_path)


@pytest.mark.parametrize(
    ("prompt", "images"), [("<image> and <image>", 1), ("one <image>", 2), ("<image>", 0)]
)
def test_placeholders_must_match_the_images(
    foveate: Foveate, llava: Path, picture: Path, prompt: str, images: int
) -> None:
    given = [argument for _ in range(images) for argument in ("--image", picture)]
    message = refused(foveate, "--model", llava, "--prompt", prompt, *given)
    assert f"{prompt.count('<image>')} '<image>' placeholder(s), but {images} image(s)" in message


@pytest.mark.parametrize("prompt", ["", " \n"])
def test_an_empty_prompt(foveate: Foveate, llama: Path, prompt: str) -> None:
    assert "empty" in refused(foveate, "--model", llama, "--prompt", prompt)


def test_images_for_a_text_model(foveate: Foveate, llama: Path, picture: Path) -> None:
    message = refused(foveate, "--model", llama, "--prompt", WORDS, "--image", picture)
    assert "reads text only" in message
    assert "--model" in message


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("kept", "has no image format"),
        ("kept.txt", "has no image format"),
        ("nowhere/kept.png", "does not exist"),
        (".png", "has no image format"),
    ],
)
def test_pictures_that_cannot_be_written_are_refused_before_anything_is_loaded(
    foveate: Foveate, picture: Path, monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.delattr("foveate_demo.vision.load")
    message = refused(foveate, "--image", picture, "--prompt", WORDS, "--picture", name)
    assert says in message
    assert repr(name) in message


def test_a_picture_of_a_prompt_without_images(foveate: Foveate, llama: Path) -> None:
    message = refused(foveate, "--model", llama, "--prompt", WORDS, "--picture", "kept.png")
    assert "the prompt has none" in message


def test_an_unknown_method(foveate: Foveate) -> None:
    assert "Did you mean 'snapkv'?" in refused(foveate, "--method", "snapk")


@pytest.mark.parametrize("budget", ["0", "0.0", "-5", "-10%", "nan", "inf", "1.5", "120%", "ten"])
def test_budgets_that_make_no_sense(foveate: Foveate, budget: str) -> None:
    message = refused(foveate, "--budget", budget)
    assert repr(budget) in message
    assert "Give a fraction" in message


@pytest.mark.parametrize("budget", ["31", "5%"])
def test_a_budget_below_the_window_is_raised_to_it(
    foveate: Foveate, llama: Path, budget: str
) -> None:
    arguments = ("run", "--model", llama, "--prompt", WORDS, "--max-new-tokens", 2, "--json")
    result = foveate(*arguments, "--method", "snapkv", "--budget", budget)
    assert result.exit_code == 0, result.stderr
    assert [row["kept_tokens"] for row in json.loads(result.stdout)["rows"]] == [77, 32]


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share below the window is refused when the prompt has been read."""
    monkeypatch.setattr("foveate.cli.run.measure.compress", partial(library.compress, strict=True))


@pytest.mark.usefixtures("strict")
def test_what_is_refused_keeps_the_rows_before_it(foveate: Foveate, llama: Path) -> None:
    arguments = ("run", "--model", llama, "--prompt", WORDS, "--max-new-tokens", 2)
    result = foveate(*arguments, "--method", "snapkv", "--budget", "5%")
    assert result.exit_code == 2
    assert "full" in result.stdout
    assert "lower the window" in result.stderr


@pytest.mark.usefixtures("strict")
def test_nothing_but_json_is_printed_with_json(foveate: Foveate, llama: Path) -> None:
    arguments = ("--model", llama, "--prompt", WORDS, "--method", "snapkv", "--json")
    arguments = (*arguments, "--max-new-tokens", 2)
    assert "lower the window" in refused(foveate, *arguments, "--budget", "5%")


# ------------------------------------------------------------------- code that comes with a model


def with_code(folder: Path, file: str, kind: str, name: str) -> Path:
    """A model's folder that names code of its own in a file; the code leaves a trace behind."""
    (folder / "its_own.py").write_text(
        "from pathlib import Path\n"
        f"Path({str(folder / 'ran')!r}).touch()\n"
        "from transformers import PreTrainedTokenizerFast\n"
        f"class {name}(PreTrainedTokenizerFast): ...\n"
    )
    path = folder / file
    held = json.loads(path.read_text()) if path.exists() else {}
    code = f"its_own.{name}"
    held["auto_map"] = {kind: [None, code] if kind == "AutoTokenizer" else code}
    held.pop("model_type", None)
    held["tokenizer_class" if kind == "AutoTokenizer" else "processor_class"] = name
    path.write_text(json.dumps(held))
    return folder


@pytest.mark.parametrize(
    ("family", "file", "kind"),
    [
        ("llama", "tokenizer_config.json", "AutoTokenizer"),
        ("llava", "processor_config.json", "AutoProcessor"),
        ("llama", "config.json", "AutoConfig"),
    ],
)
def test_code_in_a_models_folder_is_not_run_and_not_asked_about(
    foveate: Foveate,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    family: str,
    file: str,
    kind: str,
) -> None:
    model = shutil.copytree(request.getfixturevalue(family), tmp_path / family)
    with_code(model, file, kind, "Custom")
    monkeypatch.setattr("builtins.input", lambda *asked: pytest.fail("a question"))
    message = refused(foveate, "--model", model, "--prompt", WORDS)
    assert str(model) in message
    assert f"auto_map in {file}" in message
    assert "--trust-remote-code" in message
    assert not (model / "ran").exists()


def test_transformers_own_class_stands_in_for_code_that_it_knows(
    foveate: Foveate, tmp_path: Path, llava: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = shutil.copytree(llava, tmp_path / "llava")
    with_code(model, "tokenizer_config.json", "AutoTokenizer", "Custom")
    monkeypatch.setattr("builtins.input", lambda *asked: pytest.fail("a question"))
    arguments = ("--model", model, "--prompt", WORDS, "--max-new-tokens", 1, "--method", "h2o")
    assert foveate("run", *arguments).exit_code == 0
    assert not (model / "ran").exists()


def test_code_runs_where_it_is_trusted(
    foveate: Foveate, tmp_path: Path, llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "m"))
    monkeypatch.setattr("sys.path", [*sys.path])
    model = with_code(
        shutil.copytree(llama, tmp_path / "llama"), "tokenizer_config.json", "AutoTokenizer", "Own"
    )
    arguments = ("--model", model, "--prompt", WORDS, "--max-new-tokens", 1, "--method", "h2o")
    assert foveate("run", *arguments, "--trust-remote-code").exit_code == 0
    assert (model / "ran").exists()


@pytest.mark.parametrize("trusted", [False, True])
def test_executors_load_the_model_as_it_is_trusted(
    monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    asked = []

    def load(
        name: str, trust_remote_code: bool, device_map: str | None = None, pad_images: bool = False
    ) -> None:
        asked.append(trust_remote_code)

    for place in ("load", "ray.load"):
        monkeypatch.setattr(f"foveate_lab.eval.executors.{place}", load)
    with find_executor("local", "some/model", "query-aware", None, trusted):
        assert asked == [trusted]
    cluster = find_executor("ray", "some/model", "query-aware", None, trusted)
    handed: Any = SimpleNamespace(remote=lambda *sent: Worker(*sent).ready())
    monkeypatch.setattr("ray.remote", lambda cls: SimpleNamespace(options=lambda **_: handed))
    cluster._share = SimpleNamespace(cpus=1, gpus=0)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):  # what was hired here is no worker of a cluster
        cluster._hire()  # type: ignore[attr-defined]
    assert asked == [trusted, trusted]


def test_an_attention_of_another_repository_is_not_loaded(
    foveate: Foveate, tmp_path: Path, llama: Path
) -> None:
    model = shutil.copytree(llama, tmp_path / "llama")
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "attn_implementation": "some/one"}))
    assert "attn_implementation='some/one'" in refused(foveate, "--model", model)


def test_every_load_says_whether_code_may_run() -> None:
    """Left out, transformers asks on standard input."""
    sources = (Path(package.__file__).parent for package in (library, foveate_lab, foveate_demo))
    calls = [
        (path, call)
        for source in sources
        for path in source.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and getattr(call.func, "attr", "") == "from_pretrained"
        and getattr(call.func.value, "id", "").lower().startswith("auto")  # type: ignore[attr-defined]
    ]
    assert len(calls) > 5
    for path, call in calls:
        names = {word.arg or ast.unparse(word.value) for word in call.keywords}
        assert names & {"trust_remote_code", "source.allowed"}, f"{path}, line {call.lineno}"
