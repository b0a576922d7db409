"""Every Python block of the documentation runs, page by page, on a tiny random LLaVA.

A page's blocks share their names, and begin with those that :func:`given` makes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

import foveate
from foveate import errors
from foveate.chat import generation
from foveate.errors import FoveateError
from tests import zoo

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
ELSEWHERE = {
    "coming_from_kvpress.md": "half of its blocks are kvpress's: test_coming_from_kvpress.py",
    "README.md": "its figures are checked, too: test_readme.py",
}
NOT_RUN = {
    "kernels.md": {
        'foveate.ops.using("triton")': "Triton needs a GPU",
        "torch.cuda.synchronize": "CUDA graphs need a GPU",
    },
    "evaluation.md": {"register(": "VLMEvalKit is not a package"},
    "howto/video.md": {
        "videos=[clip.frames]": "video processors need torchvision: tests/serving/test_videos.py"
    },
}
"""Blocks that cannot run here, by a piece of each, and why."""


LONGEST = 4  # tokens of an answer: what a page asks for would take a minute


class Block(NamedTuple):
    """A block's place and its source."""

    line: int
    source: str


def blocks(path: Path) -> list[Block]:
    """Those of a page, without the indentation of a list."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(
            text.count("\n", 0, found.start()) + 1,
            re.sub(f"^{found[1]}", "", found[2], flags=re.MULTILINE),
        )
        for found in BLOCK.finditer(text)
    ]


PAGES = {
    path.relative_to(ROOT / "docs").as_posix(): blocks(path)
    for path in sorted((ROOT / "docs").rglob("*.md"))
}
RUN = {page: found for page, found in PAGES.items() if found and page not in ELSEWHERE}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What blocks take as given: a model and its processor, a prompt, and ways that it goes on."""
    folder = zoo.save_llava(tmp_path_factory.mktemp("model"))
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder, use_fast=False)
    image = Image.linear_gradient("L").convert("RGB").resize((24, 24))
    question = "What is the total of this receipt, and what was bought? " * 4
    asked = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": asked}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    return {
        "model": model,
        "processor": processor,
        "tokenizer": processor.tokenizer,
        "image": image,
        "images": [image],
        "question": question,
        "inputs": dict(inputs),
        "policy": foveate.snapkv(budget=0.2),
        "turn_1": dict(inputs),
        "turn_2": longer(inputs, processor, "And in Euro?", told=LONGEST),
        "questions": [longer(inputs, processor, text) for text in ("Which day?", "Where?")],
        "mask": inputs["input_ids"] == model.config.image_token_id,
        "layers": [tuple(torch.randn(1, heads, 170, 8) for heads in (4, 2, 2))],
        "visual": torch.arange(170)[None] < 60,  # of these layers' tokens
        "torch": torch,
        "foveate": foveate,
    }


def longer(inputs: Any, processor: Any, text: str, told: int = 0) -> dict[str, Any]:
    """The prompt with an answer of so many tokens and a text behind it; its image is known."""
    words = processor.tokenizer("y" * told + text, return_tensors="pt", add_special_tokens=False)
    ids = torch.cat([inputs["input_ids"], words["input_ids"]], dim=1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_run(
    page: str, given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if page == "howto/video.md":
        pytest.importorskip("av", reason="PyAV is not installed")
        from tests.videos import film

        film(tmp_path / "film.mp4")
    monkeypatch.setattr(generation, "LONGEST", LONGEST)
    module = ModuleType(f"page_{re.sub(r'[^a-z]', '_', page)}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(given)
    skipped = NOT_RUN.get(page, {})
    for line, source in RUN[page]:
        if not any(piece in source for piece in skipped):
            short = re.sub(r"max_new_tokens=\d+", f"max_new_tokens={LONGEST}", source)
            short = re.sub(r"\blimit=\d+", "limit=1", short)
            exec(compile("\n" * line + short, f"docs/{page}", "exec"), vars(module))


def test_every_error_stands_on_the_page_of_refusals() -> None:
    page = (ROOT / "docs" / "howto" / "refusals.md").read_text(encoding="utf-8")
    raised = {name for name, one in vars(errors).items() if one in FoveateError.__subclasses__()}
    assert set(re.findall(r"^\| `(\w+)` \|", page, flags=re.MULTILINE)) == raised


def test_what_is_not_run_is_there() -> None:
    assert set(ELSEWHERE) <= {*PAGES, "README.md"}
    for page, pieces in NOT_RUN.items():
        for piece in pieces:
            assert sum(piece in block.source for block in PAGES[page]) == 1, (page, piece)
