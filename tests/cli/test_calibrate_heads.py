"""``foveate calibrate sparsemm`` and ``headkv``: prompts that show what where."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM, AutoTokenizer

import foveate as library
from foveate.cli.calibrate.prompts import generated, locate_spans
from foveate.loading.model import load
from tests.answers import certain

from .conftest import Foveate, refused

TEXT = "Which of these words is seen best, the first, the last, or the one that is looked at?"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file of JSON lines."""

    def lines(*entries: object) -> Path:
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
        return path

    return lines


def said_by(directory: Path, tokens: int) -> str:
    """What the model answers to the text."""
    model: Any = AutoModelForCausalLM.from_pretrained(directory)
    words = AutoTokenizer.from_pretrained(directory)
    inputs = words.apply_chat_template(
        [{"role": "user", "content": TEXT}],
        return_dict=True,
        add_generation_prompt=True,
        return_tensors="pt",
    )
    how = {"output_logits": True, "return_dict_in_generate": True}
    out = model.generate(**inputs, max_new_tokens=tokens, do_sample=False, **how)
    if certain(out.logits) < tokens:
        pytest.skip("on another CPU this model may say something else")
    ids = out.sequences[0, inputs["input_ids"].shape[1] :]
    text: str = words.decode(ids, skip_special_tokens=True)
    return text


def test_the_file_is_one_that_run_accepts(
    foveate: Foveate, llama: Path, write: Write, tmp_path: Path
) -> None:
    entry = {"prompt": TEXT, "answer": said_by(llama, 6), "spans": [{"text": "words is seen"}]}
    out = tmp_path / "heads.json"
    result = foveate(
        "calibrate", "headkv", "--model", llama, "--prompts", write(entry, entry), "--out", out
    )
    assert result.exit_code == 0, (result.stderr, result.exception)
    assert result.stdout.startswith(f"{out}: headkv on ")
    assert "3 layers, 2 prompts\n" in result.stdout
    assert f"--method headkv:budget=20%,profile={out}" in result.stdout
    assert [path.name for path in tmp_path.iterdir() if ".part" in path.name] == []
    spec = f"headkv:budget=60%,window=4,profile='{out}'"
    asked = ("run", "--model", llama, "--prompt", TEXT, "--max-new-tokens", 2)
    result = foveate(*asked, "--method", spec)
    assert result.exit_code == 0, (result.stderr, result.exception)


def test_a_text_in_the_prompt_stands_on_the_tokens_that_hold_it(llama: Path, write: Write) -> None:
    from foveate.cli.prompt import Which, samples_of

    entry = {"prompt": TEXT, "spans": [{"text": "these words"}, {"text": "looked at?"}]}
    loaded = load(str(llama))
    (asked,) = samples_of(write(entry), Which(10))
    ids = locate_spans(loaded, asked).inputs["input_ids"][0].tolist()
    for text, where in locate_spans(loaded, asked).spans:
        held = loaded.tokenizer.decode([ids[place] for place in where])
        inside = loaded.tokenizer.decode([ids[place] for place in list(where)[1:-1]])
        assert text in held
        assert text not in inside


@pytest.mark.parametrize("method", ["headkv", "sparsemm"])
def test_generated_documents_show_their_lines_where_they_stand(method: str) -> None:
    for asked in generated(method, 6):
        (image,) = asked.images
        pixels = np.asarray(image.convert("L"), dtype=float)
        evidence = [
            span for span in asked.evidence if asked.answers[0].split(": ")[-1] in span.text
        ]
        assert evidence
        assert method != "headkv" or len(asked.evidence) == 1
        for span in asked.evidence:
            left, top, right, bottom = (int(x) for x in span.box)
            paper = np.median(pixels)
            assert np.abs(pixels[top:bottom, left:right] - paper).max() > 60
    assert [a.text for a in generated(method, 6)] == [a.text for a in generated(method, 6)]


def test_spans_on_images_are_visual_tokens(llava: Path, picture: Path, write: Write) -> None:
    from foveate.cli.prompt import Which, samples_of

    right = {"text": "blue", "image": 1, "box": [28, 0, 40, 30]}
    entry = {"prompt": "Which?", "images": [str(picture)] * 2, "answer": "blue", "spans": [right]}
    loaded = load(str(llava))
    (asked,) = samples_of(write(entry), Which(10), outside=True)
    inputs = locate_spans(loaded, asked).inputs
    visual = torch.nonzero(inputs["input_ids"][0] == loaded.model.config.image_token_id)[:, 0]
    ((_, where),) = locate_spans(loaded, asked).spans
    assert [visual.tolist().index(place) - 9 for place in where] == [2, 5, 8]
    assert library.Shown(inputs, [("blue", where)]).answer == ""


SPAN = {"text": "words"}
BOX = {"text": "words", "image": 0, "box": [0, 0, 9, 9]}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"prompt": TEXT}, "no field 'spans'"),
        ({"prompt": TEXT, "spans": []}, "the field 'spans' is []"),
        ({"prompt": " ", "spans": [SPAN]}, "the prompt ' ' is empty"),
        ({"prompt": TEXT, "spans": [{"text": "a", "box": [1, 2]}]}, "a list of 4 numbers"),
        ({"prompt": TEXT, "spans": "words"}, 'Expected in a line: {"prompt"'),
        (
            {"prompt": TEXT, "spans": [BOX]},
            "its box needs an image, and the prompt has none",
        ),
        ({"prompt": TEXT, "spans": [{"text": "purple"}]}, "does not contain the text 'purple'"),
    ],
)
def test_a_line_that_shows_nothing_is_refused(
    foveate: Foveate, llama: Path, write: Write, entry: Any, says: str
) -> None:
    result = foveate("calibrate", "sparsemm", "--model", llama, "--prompts", write(entry))
    assert says in refused(result)


def test_the_documents_that_are_drawn_need_a_model_that_sees(foveate: Foveate, llama: Path) -> None:
    assert "reads text only" in refused(foveate("calibrate", "headkv", "--model", llama))


def test_an_image_that_cannot_be_read_is_named(
    foveate: Foveate, llava: Path, write: Write, tmp_path: Path
) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "small.png")
    (tmp_path / "no.png").write_text("no image")
    entry = {"prompt": TEXT, "images": ["small.png", "no.png"], "spans": [BOX]}
    result = foveate("calibrate", "sparsemm", "--model", llava, "--prompts", write(entry))
    assert "no.png" in refused(result)
