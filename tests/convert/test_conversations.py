"""Prompts of an evaluation are those of the authors' code, whatever the checkpoint's form.

``tests/golden/data/prompts.json`` holds what their code made of the same questions:
``tests/golden/record_prompts.py`` recorded it.
"""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace

import pytest
from PIL import Image

import foveate.prompts.prompt
from foveate.loading.model import load
from foveate.prompts.sample import PLACE, Sample
from foveate_lab.convert import templates
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.answering.reading import read_prompt
from foveate_lab.eval.conversations import FAMILIES, family_of
from foveate_lab.eval.metrics import has_words
from foveate_lab.eval.task_registry import Task
from foveate_lab.eval.tasks import find_task
from foveate_lab.reproduce.models import MODELS
from tests.golden.vectors import DATA
from tests.zoo.directory import save_llava

GOLDEN = json.loads((DATA / "prompts.json").read_text())
PROMPTS = GOLDEN["prompts"]
IMAGES_FIRST = """\
{%- for message in messages -%}
{{- START -}}
{%- for part in message.content -%}
{%- if part.type == "image" -%}{{- "<image>\\n" -}}{%- endif -%}
{%- endfor -%}
{%- for part in message.content -%}
{%- if part.type == "text" -%}{{- part.text + END -}}{%- endif -%}
{%- endfor -%}
{%- endfor -%}
"""


def images_first(start, end, ask=""):
    """A template that renders what the hub's of llava-hf and OpenGVLab render of a question."""
    template = IMAGES_FIRST.replace("START", json.dumps(start)).replace("END", json.dumps(end))
    return template + "{{- " + json.dumps(ask) + " -}}"


HUB = {
    "llava-1.5": ("llava", "llama", images_first("USER: ", " ", "ASSISTANT:")),
    "llava-next-vicuna": ("llava_next", "llama", images_first("USER: ", " ", "ASSISTANT:")),
    "llava-next-mistral": ("llava_next", "mistral", images_first("[INST] ", " [/INST]")),
    "internvl3": (
        "internvl",
        "qwen2",
        images_first("<|im_start|>user\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
    ),
    "internvl-chat-v1.5": ("internvl", "llama", templates.intern("<image>")),
    "mobilevlm": ("mobilevlm", "llama", templates.vicuna("<image>")),
}
"""Types and chat templates of the checkpoints that experiments load."""


@pytest.fixture
def stand_in(make):
    """A model of a family, with its chat template, and nothing that could be asked."""

    def made(family):
        model_type, text_type, template = HUB[family]
        loaded = with_template(make("llava").loaded, template)
        model = copy.copy(loaded.model)
        model.config = copy.deepcopy(model.config)
        model.config.model_type, model.config.text_config.model_type = model_type, text_type
        return replace(loaded, model=model)

    return made


@pytest.fixture
def folder(tmp_path):
    """A folder of each benchmark with the questions that were recorded."""
    sets = tmp_path / "milebench" / "CLEVR-Change"
    places = (sets / "images", tmp_path / "mm_vet" / "images", tmp_path / "llava_description")
    for place in places:
        place.mkdir(parents=True)
        for name in "abc":
            Image.new("RGB", (24, 24)).save(place / f"{name}.png")
    (sets / "CLEVR-Change.json").write_text(json.dumps(GOLDEN["milebench"]))
    mm_vet = {"v1_0": {"imagename": "a.png", "question": GOLDEN["question"], "answer": "red"}}
    (tmp_path / "mm_vet" / "mm-vet.json").write_text(json.dumps(mm_vet))
    described = [
        {
            "id": str(number),
            "image": "a.png",
            "conversations": [
                {"from": "human", "value": text},
                {"from": "gpt", "value": "A ball."},
            ],
        }
        for number, text in enumerate(GOLDEN["descriptions"])
    ]
    (tmp_path / "llava_description" / "detail_1k.json").write_text(json.dumps(described))
    return tmp_path


def with_template(loaded, template):
    """The model with another chat template."""
    reader = type(loaded.reader).__new__(type(loaded.reader))
    vars(reader).update(vars(loaded.reader), chat_template=template)
    return replace(loaded, reader=reader)


def worded(monkeypatch, loaded, task, sample):
    """The text that a sample's prompt is before it is tokenized."""
    texts = []

    def encode(model, processor, text, *others, **options):
        texts.append(text)
        raise InterruptedError

    monkeypatch.setattr(foveate.prompts.prompt, "encode", encode)
    with pytest.raises(InterruptedError):
        ask(loaded, task, sample)
    monkeypatch.undo()
    return texts[0]


def ask(loaded, task, sample):
    return read_prompt(loaded, task, sample, "query-aware", timed=False, longest_prompt=None)


@pytest.mark.parametrize(
    ("family", "golden"),
    [
        ("llava-1.5", "milebench/llava-1.5"),
        ("llava-1.5", "milebench/llava-1.5 of LOOK-M"),
        ("llava-1.5", "milebench/llava-1.5 of CSP"),
        ("internvl-chat-v1.5", "milebench/internvl-chat-v1.5"),
        ("mobilevlm", "milebench/mobilevlm"),
        ("llava-1.5", "mm_vet/llava-1.5"),
        ("llava-next-vicuna", "mm_vet/llava-next-vicuna"),
        ("llava-1.5", "llava_description/llava-1.5"),
    ],
)
def test_a_benchmark_is_worded_as_in_the_papers_code(monkeypatch, stand_in, folder, family, golden):
    kind = golden.partition("/")[0]
    name = {"milebench": "milebench_s3(set=CLEVR-Change)"}.get(kind, kind)
    task = find_task(f"{name}={folder / kind}")
    texts = [worded(monkeypatch, stand_in(family), task, one) for one in task.samples(9, 0)]
    expected = PROMPTS[golden]
    assert texts == (expected if isinstance(expected, list) else [expected])


@pytest.mark.parametrize(
    ("family", "golden", "conversations"),
    [
        ("llava-1.5", "vicuna_v1", {}),
        ("llava-next-vicuna", "vicuna_v1", {}),
        ("llava-next-mistral", "mistral_instruct", {}),
        ("internvl3", "internvl3", {}),
        (
            "llava-1.5",
            "vlmevalkit/llava-1.5",
            MODELS["llava-1.5-7b"].conversations_of("ocrbench", {}),
        ),
    ],
)
def test_a_question_is_worded_as_in_the_authors_code(
    monkeypatch, stand_in, family, golden, conversations
):
    sample = Sample("0", GOLDEN["question"], ("red",), images=(Image.new("RGB", (24, 24)),))
    task = plain_task(conversations)
    assert worded(monkeypatch, stand_in(family), task, sample) == PROMPTS[golden]


def plain_task(conversations):
    return Task("t", "", lambda count, seed: iter(()), has_words, 2, conversations=conversations)


SAMPLES = {
    "text": Sample("0", "Is it there?", ("yes",)),
    "one image": Sample("0", "What is it?", ("a hen",), images=(Image.new("RGB", (24, 24)),)),
    "three images within the text": Sample(
        "0",
        f"One: {PLACE} Two: {PLACE} Three: {PLACE} Which?",
        ("a hen",),
        images=tuple(Image.new("RGB", (24, 24), color) for color in ("red", "green", "blue")),
    ),
}


@pytest.mark.parametrize("conversation", ["vicuna_v1", "llava_llama_2", "vlmevalkit"])
@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_llava_of_the_hub_converted_and_local_is_asked_alike(make, tmp_path, sample, conversation):
    """The hub's template puts images first and has no system prompt."""
    converted = make("llava")
    local = tmp_path / "llava-1.5-7b-hf"
    shutil.copytree(converted.target, local)
    (local / "chat_template.jinja").write_text(HUB["llava-1.5"][2])
    hub = with_template(converted.loaded, HUB["llava-1.5"][2])
    task = plain_task({"llava-1.5": conversation})
    prompts = [ask(each, task, sample).prompt for each in (hub, converted.loaded, load(str(local)))]
    first, *others = (prompt.inputs["input_ids"].tolist() for prompt in prompts)
    assert others == [first, first]
    # nine tokens an image, at the places that the text has for them
    runs = [
        run for run in "".join("#" if one else " " for one in prompts[0].vision).split(" ") if run
    ]
    assert runs == ["#" * 9] * len(sample.images)


def test_the_conversation_is_in_the_rows(make):
    (row,) = measured(make("llava").loaded, plain_task({}), SAMPLES["one image"], (), "query-aware")
    assert row["conversation"] == "vicuna_v1"
    (row,) = measured(
        make("qwen_vl").loaded, plain_task({}), SAMPLES["one image"], (), "query-aware"
    )
    assert "conversation" not in row


def test_another_chat_template_stays(make, tmp_path, stand_in):
    """LLaVA of another team, with a template of its own, is not taken for LLaVA-1.5."""
    assert family_of(load(str(save_llava(tmp_path / "other")))) == ""
    assert [family_of(stand_in(family)) for family in HUB] == [
        family if family in FAMILIES else "" for family in HUB
    ]
    assert family_of(make("internvl").loaded) == "internvl-chat-v1.5"
