"""Every ``foveate`` command that the documentation shows is one that the command line takes, and
what needs nothing but the demo model and drawn files runs.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate_demo.questions import document
from foveate_demo.scenes import BUILT_IN
from foveate_lab.reproduce.stand_in import write

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"\s*(?:\w+=\S+ )*(?:\.venv/bin/)?foveate ")
NAMES = {  # what pages call a user's own, and what stands in its place
    "MODEL": "demo",
    "llava-hf/llava-1.5-7b-hf": "demo",
    "llava-1.5-7b-here": "demo",
    "Qwen/Qwen2.5-VL-3B-Instruct": "demo",
    "/data/chartqa": "data/chartqa",
    "/data/docvqa": "data/docvqa",
    "/data/milebench": "data/milebench",
    "/data/mm-vet": "data/mm_vet",
    "--limit 100": "--limit 1",
    "--limit 200": "--limit 1",
    "--budgets 20%,10%,5%": "--budgets 50%",  # files of the benchmarks' form, with short prompts
    "--tokens 4096": "--tokens 256",
}
MORE = {"eval": ("--limit", "1"), "bench": ("--rounds", "1"), "calibrate": ("--samples", "1")}
ELSEWHERE = {
    "serve": "vLLM; tests/serving has it",
    "convert": "an original checkpoint; tests/convert has it",
    "eval --executor ray --workers 8": "eight machines; tests/eval/test_ray.py has it",
    "bench --suite gpu": "a GPU; tests/bench has it at toy sizes",
    "report qwen-3b": "the reader's results; tests/cli/test_report.py has it",
    "report stored/qwen-3b": "the same, and others' beside them",
    "bench --dims": "the memory of a model of seven billion weights",
    "reproduce all --stand-in": "half an hour; tests/cli/test_reproduce.py has it",
    "reproduce mixkv:table1 --data": "the paper's weights and data; it runs as a stand-in",
    "methods dilated_window": "a method that the reader writes",
    "show dilated_window": "a method that the reader writes; tests/cli/test_new_method.py has it",
    "cite dilated_window": "a method that the reader writes",
    "run --method dilated_window": "a method that the reader writes",
}
"""Commands that are only parsed, by how they begin, and what they would need."""
QUICK = ("show", "cite", "methods", "reproduce --list")


class Block(NamedTuple):
    """The commands of one block of code, without their program."""

    page: str
    commands: tuple[str, ...]


def blocks(path: Path) -> Iterator[Block]:
    """Those that hold a command."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    found: list[str] = []
    for line in [*text.splitlines(), ""]:
        if COMMAND.match(line) and (line.startswith("    ") or not line.startswith(" ")):
            words = shlex.split(COMMAND.sub("", line), comments=True)
            found.append(shlex.join(words))
        elif found and not line.strip().startswith(("#", "foveate")):
            yield Block(path.relative_to(ROOT).as_posix(), tuple(found))
            found = []


BLOCKS = [block for path in PAGES for block in blocks(path)]
COMMANDS = list(dict.fromkeys(one for block in BLOCKS for one in block.commands))


def here(command: str) -> bool:
    return not command.startswith(tuple(ELSEWHERE))


def parsed(command: str) -> Any:
    """The command's context, with its options read and nothing done."""
    commands: Any = typer.main.get_command(app)
    name, *rest = shlex.split(command)
    return commands.commands[name].make_context(name, rest)


def with_what_there_is(command: str) -> list[str]:
    for name, there in NAMES.items():
        command = re.sub(rf"(?<![\w/.-]){re.escape(name)}(?![\w.-])", there, command)
    words = shlex.split(command)
    more = () if "--from" in words else MORE.get(words[0], ())  # which measures nothing
    return [*words, *(() if more[:1] and more[0] in words else more)]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that pages speak of."""
    folder = tmp_path_factory.mktemp("desk")
    write(folder / "data", 1, ["chartqa", "docvqa", "milebench", "mm_vet"])
    page = document(Random(0), (BUILT_IN,)).images[0].image.convert("RGB")
    tall = Image.new("RGB", (page.width, 2 * page.height))  # a tenth of it is more than a window
    for half in (0, page.height):
        tall.paste(page, (0, half))
    for name in ("receipt.png", "cat.jpg"):
        tall.save(folder / name)
    if find_spec("av") is not None:
        import_module("tests.videos").film(folder / "film.mp4", times=[0, 4])
    texts = [" ".join(f"word {place}" for place in range(count)) for count in (30, 40, 240)]
    lines = "".join(json.dumps({"prompt": text}) + "\n" for text in texts)
    (folder / "train.jsonl").write_text(lines, encoding="utf-8")
    for name in ("ocrbench.jsonl", "prompts.jsonl"):  # a fifth of it is more than a window
        (folder / name).write_text(lines.splitlines(keepends=True)[-1], encoding="utf-8")
    (folder / "my_judge.py").write_text("def ask(prompt):\n    return '1.0'\n", encoding="utf-8")
    for name, held in published().items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(held), encoding="utf-8")
    return folder


def published() -> dict[str, Any]:
    """What methods' authors publish, of models with the demo's layers and heads."""
    heads = [f"{layer}-{head}" for layer in range(30) for head in range(9)]
    kv_heads = [f"{layer}-{head}-key" for layer in range(30) for head in range(3)]
    return {
        "confs/prefixkv_llava-v1.5-7b_0.8.json": [0.8] * 30,
        "llava-mistral-v1.6.json": {name: [place / 270] for place, name in enumerate(heads)},
        "qwen_kv_similarity.json": {name: [0.5] for name in kv_heads},
    }


def test_commands_are_found():
    assert len(COMMANDS) > 20
    kinds = {command.split()[0] for command in COMMANDS}
    assert kinds >= {"run", "bench", "show", "eval", "report", "lens", "calibrate", "reproduce"}
    assert all(any(one.startswith(way) for one in COMMANDS) for way in ELSEWHERE)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_command_line_takes_it(command):
    parsed(command)


def test_an_option_that_there_is_not_is_found():
    with pytest.raises(Exception, match="No such option: --no-such-option"):
        parsed("eval --no-such-option --out results")


@pytest.mark.parametrize(
    "command", [one for one in COMMANDS if one.startswith(QUICK) and here(one)]
)
def test_it_says_what_there_is(command):
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == 0, done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    [b for b in BLOCKS if any(here(one) and not one.startswith(QUICK) for one in b.commands)],
    ids=lambda block: f"{block.page}: {block.commands[0]}",
)
def test_a_block_runs(block, desk, tmp_path, monkeypatch):
    for path in desk.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for command in filter(here, block.commands):
        done = CliRunner().invoke(app, with_what_there_is(command))
        assert done.exit_code == 0, (command, done.output)
