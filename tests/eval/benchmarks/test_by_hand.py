"""Each benchmark's rules, worked out by hand, on files as they are released."""

from __future__ import annotations

import base64
import io
import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from foveate.prompts.sample import Sample
from foveate_lab.eval.answering.perplexity import perplexity
from foveate_lab.eval.metrics import rouge_l_to
from foveate_lab.eval.task_registry import Task
from foveate_lab.eval.tasks import find_task
from tests.eval.benchmarks.conftest import Folder, samples
from tests.eval.benchmarks.test_longbench import record as long_record
from tests.eval.benchmarks.test_milebench import content

PEOPLE = ["stop"] * 4 + ["Stop sign"] * 3 + ["2"] * 2 + ["don't know"]
CHOICES = ["to the left", "to the right", "2.5 cm", "no move"]
Found = tuple[Task, Sample]


def docvqa(folder: Folder, answers: list[str]) -> Found:
    record = {"questionId": 1, "question": "?", "image": "documents/a.png", "answers": answers}
    path = folder(["documents/a.png"], **{"val_v1.0": {"data": [record]}})
    return first(f"docvqa={path}")


def first(name: str) -> Found:
    task = find_task(name)
    return task, samples(task, 1)[0]


@pytest.mark.parametrize(
    ("answers", "said", "score"),
    [
        (["1/8/93"], "1/8/93", 1),
        (["1/8/93"], "1/8/92", 5 / 6),  # one of six letters differs
        (["1/8/93"], "9/9/99", 0.5),  # three of six
        (["abcd"], "abxx", 0.5),  # a half still counts
        (["abcd"], "axxx", 0),  # a quarter does not
        (["abcd", "axxx"], "axxx", 1),  # the best answer
        (["New York"], "new   yorx", 0.9),  # blanks are squeezed, lengths are not
        (["New York"], "NEW YORK", 1),
        (["ab"], "abcdef", 0),
        (["ab"], "", 0),
        (["kitten"], "sitting", 4 / 7),  # three edits of seven letters
    ],
)
def test_docvqa(folder: Folder, answers: list[str], said: str, score: float) -> None:
    task, one = docvqa(folder, answers)
    assert task.metric(said, one) == pytest.approx(score)


@pytest.mark.parametrize(
    ("kind", "answer", "said", "score"),
    [
        ("Regular", "CENTRE", "It says 'centre'.", 1),
        ("Regular", "CENTRE", "center", 0),
        ("Regular", "two words", "Two\nwords", 1),  # a new line is a blank
        ("Regular", "two\nwords", "It is two words.", 1),
        ("Regular", "two words", "two  words", 0),
        ("Regular", " 12 ", "12", 1),
        ("Regular", "12", "it is 1 2", 0),
        ("Regular", "a", "", 0),
        ("HME", "\\frac { 1 } {X}", "\\frac{1}{X}", 1),
        ("HME", "\\frac { 1 } {X}", "\\frac{1}{x}", 0),
        ("HME", "x + 1", "= x\n+1", 1),
        ("HME", "x + 1", "x\t+1", 0),  # a tab is no blank
        ("lowered HME", "x + Y", "x + Y", 0),  # lmms-eval's departure
    ],
)
def test_ocrbench(folder: Folder, kind: str, answer: str, said: str, score: int) -> None:
    formula = "Handwritten Mathematical Expression Recognition"
    record = {
        "dataset_name": "HME100k" if "HME" in kind else "IIIT5K",
        "type": formula if "HME" in kind else "Regular Text Recognition",
        "id": 0,
        "image_path": "a.png",
        "question": "?",
        "answers": [answer],
    }
    path = folder(["a.png"], OCRBench=[record])
    task, one = first(f"ocrbench(lowered={'true' if 'lowered' in kind else 'false'})={path}")
    assert task.metric(said, one) == score


@pytest.mark.parametrize(
    ("said", "score"),
    [
        # ten people, one left out each time: 4 stop, 3 stop sign, 2 two, 1 don't know
        ("stop", 1),
        ("The stop.", 1),
        ("Stop Sign", (3 * 2 / 3 + 7 * 1) / 10),
        ("two", (2 * 1 / 3 + 8 * 2 / 3) / 10),
        ("2", (2 * 1 / 3 + 8 * 2 / 3) / 10),
        ("dont know", (1 * 0 + 9 * 1 / 3) / 10),
        ("don't know!", (1 * 0 + 9 * 1 / 3) / 10),
        ("stop, sign", (3 * 2 / 3 + 7 * 1) / 10),
        ("stopp", 0),
        ("", 0),
        ("a stop sign", (3 * 2 / 3 + 7 * 1) / 10),
    ],
)
def test_textvqa(folder: Folder, said: str, score: float) -> None:
    record = {"question_id": 1, "question": "What SIGN is it?", "image_id": "a", "answers": PEOPLE}
    path = folder(["train_images/a.jpg"], **{"TextVQA_0.5.1_val": {"data": [record]}})
    task, one = first(f"textvqa={path}")
    assert one.question.startswith("What sign is it?\n")
    assert task.metric(said, one) == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "said", "score"),
    [
        ("14", "14.7", 1),  # 5 %
        ("14", "14.8", 0),
        ("14", "13.3", 1),
        ("0.57", "58%", 1),  # a percentage is a share
        ("57%", "0.57", 1),
        ("57%", "57", 0),
        ("Yes", "yes", 1),
        ("Yes", "yes.", 0),
        ("0", "0", 1),
        ("0", "0.0", 0),  # zero is compared as a text
        ("2010", "2100", 1),
        ("-3", "3", 0),
    ],
)
def test_chartqa(folder: Folder, answer: str, said: str, score: int) -> None:
    record = {"imgname": "a.png", "query": "?", "label": answer}
    path = folder(["png/a.png"], test_human=[record], test_augmented=[])
    task, one = first(f"chartqa={path}")
    assert task.metric(said, one) == score


@pytest.mark.parametrize(
    ("name", "kind", "answer", "said", "score"),
    [
        ("nuscenes", "multi-choice", "to the right", "B", 1),
        ("nuscenes", "multi-choice", "to the right", "B. to the right", 1),
        ("nuscenes", "multi-choice", "to the right", "It moves to the right.", 1),
        ("nuscenes", "multi-choice", "to the right", "to the left, not to the right", 0),
        ("nuscenes", "multi-choice", "to the right", "A or B", 0),  # both letters count
        ("nuscenes", "multi-choice", "2.5 cm", "", 1),  # nothing said is "C"
        ("nuscenes", "multi-choice", "2.5 cm", "2.5 cm", 1),  # as its letters: C, of "cm"
        ("nuscenes", "multi-choice", "no move", "d", 1),
        ("nuscenes", "multi-choice", "no move", "No move", 1),
        ("nuscenes", "multi-choice", "no move", "bad", 0),
        ("nuscenes", "open-ended", "the red ball moved", "The red ball moved.", 1),
        ("nuscenes", "open-ended", "the red ball moved", "the red ball", 2 * 0.75 / 1.75),
        ("nuscenes", "open-ended", "the red ball moved", "ball red", 2 * 0.5 * 0.25 / 0.75),
        ("nuscenes", "open-ended", "the red ball moved", "", 0),
        ("TextNeedleInAHaystack", "open-ended", "214", "It is 214.", 1),
        ("TextNeedleInAHaystack", "open-ended", "214", "2140", 0),
        ("TextNeedleInAHaystack", "open-ended", "214", "no. 214!", 1),
        ("MMCoQA", "open-ended", "214", "2140", 1),
        ("MMCoQA", "open-ended", "Rome, Italy", "in rome italy", 1),
        ("MMCoQA", "open-ended", "Rome", "Paris", 0),
    ],
)
def test_milebench(
    folder: Folder, name: str, kind: str, answer: str, said: str, score: float
) -> None:
    asked: dict[str, Any] = {"context": "{image#1} ?", "images_path": ["a.jpg"]}
    if kind == "multi-choice":
        asked["choice_list"] = CHOICES
    path = folder(
        [f"{name}/images/a.jpg"],
        **{f"{name}/{name}": content(kind, {"in": asked, "out": answer})},
    )
    short = {"nuscenes": "s5", "MMCoQA": "s4"}.get(name, "n1")
    task, one = first(f"milebench_{short}(set={name})={path}")
    assert task.metric(said, one) == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "answers", "said", "score"),
    [
        ("qasper", ["The red cat"], "a Red cat!", 1),  # without articles, case and punctuation
        ("qasper", ["red cat"], "red dog", 0.5),
        ("qasper", ["red cat", "dog"], "dog", 1),
        ("qasper", ["red cat"], "", 0),
        ("gov_report", ["cats sat down"], "cats down", 2 * 1 * (2 / 3) / (5 / 3)),
        ("trec", ["City"], "City\nDate", 1),  # the first line alone
        ("trec", ["City"], "City or Date", 0.5),
        ("trec", ["City"], "Town", 0),
        ("passage_count", ["7"], "7 of 9", 0.5),
        ("passage_count", ["7"], "seven", 0),
        ("passage_retrieval_en", ["Paragraph 7"], "Paragraph 7", 1),
        ("passage_retrieval_en", ["Paragraph 7"], "17", 0),
        ("lcc", ["return x"], "# so\nreturn x\nmore", 1),
        ("lcc", ["abcd"], "abxx", 0.5),
        ("lcc", ["return x"], "// nothing", 0),
    ],
)
def test_longbench(folder: Folder, name: str, answers: list[str], said: str, score: float) -> None:
    made = long_record(answers, all_classes=["City", "Date"] if name == "trec" else None)
    path = folder([], **{f"{name}.jsonl": [made], "dataset2prompt": {name: "{context}{input}"}})
    task, one = first(f"longbench_{name}={path}")
    assert task.metric(said, one) == pytest.approx(score, abs=1e-6)
    assert one.labels == {"set": name, "language": "en", "length": "0-4k"}
    path = folder([], **{f"{name}_e.jsonl": [long_record(answers, length=8000)]})
    assert first(f"longbench_{name}(e=true)={path}")[1].labels["length"] == "8k+"


CAPTIONS = {"a": ["a red stop sign"] * 2, "b": ["a blue bus"] * 2, "c": ["a dog"] * 2}


@pytest.mark.parametrize(
    ("image", "said", "score"),
    [
        # CIDEr: ten times the mean over 1 to 4 words of the cosine with what is rare; "a" is not
        ("a", "a red stop sign", 10),
        ("a", "A red stop sign.", 10),
        ("b", "a blue bus", 7.5),  # there are no four words
        ("c", "a dog", 5),  # one word and two
        ("c", "dog", 2.5 * 0.9862),
        ("a", "a", 0),  # all images say it
        ("a", "a blue bus", 0),
        ("a", "", 0),
        ("b", "a red stop sign", 0),
        ("c", "a cat", 0),
    ],
)
def test_textcaps(folder: Folder, image: str, said: str, score: float) -> None:
    records = [
        {"image_id": name, "caption_str": one, "reference_strs": several}
        for name, several in CAPTIONS.items()
        for one in several
    ]
    path = folder(
        [f"train_images/{name}.jpg" for name in CAPTIONS], **{"TextCaps_0.1_val": {"data": records}}
    )
    task = find_task(f"textcaps={path}")
    (one,) = [one for one in samples(task) if one.name == image]
    assert task.metric(said, one) == pytest.approx(score, abs=0.01)


@pytest.mark.parametrize(
    ("said", "full", "score"),
    [
        # the different words on a longest common subsequence of any two sentences
        ("a man in a boat", "a man in a boat", 1),
        ("a man", "a man in a boat", 2 * 1 * 0.5 / 1.5),
        ("boat", "a man in a boat", 2 * 1 * 0.25 / 1.25),
        ("two dogs", "a man in a boat", 0),
        ("", "a man in a boat", 0),
        ("boat man", "man in boat", 2 * (1 / 2) * (1 / 3) / (5 / 6)),
        ("a boat. a man.", "a man. a boat.", 1),
        ("A man", "a man", 0.5),
        ("man man man", "man", 1),
        ("boat, man", "boat man", 0.5),
    ],
)
def test_llava_description_and_mm_vet_against_the_full_cache(
    said: str, full: str, score: float
) -> None:
    assert rouge_l_to(said, full) == pytest.approx(score, abs=1e-6)


@pytest.mark.parametrize(
    ("references", "value"),
    [
        ([(math.log(2), 5)], 2),
        ([(math.log(2), 5), (math.log(8), 5)], 4),  # as many tokens of each
        ([(0.0, 3), (math.log(16), 1)], 2),  # over all tokens, not over samples
        ([(0.0, 3)], 1),
        ([(None, 3)], None),
        ([(math.inf, 3)], None),
        ([], None),
        ([(None, 0)], None),
        ([(800.0, 3)], math.inf),
        ([(math.log(3), 2), (None, 0)], 3),
    ],
)
def test_perplexity_is_over_all_tokens(
    references: list[tuple[float | None, int]], value: float | None
) -> None:
    rows = [{"reference_nll": nll, "reference_tokens": n} for nll, n in references]
    assert perplexity(rows) == (value if value is None else pytest.approx(value))


def cell(colour: str) -> str:
    out = io.BytesIO()
    Image.new("RGB", (6, 5), colour).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def table(path: Path, name: str, *rows: dict[str, str]) -> Path:
    lines = ["\t".join(rows[0]), *("\t".join(row.values()) for row in rows)]
    (path / name).write_text("\n".join(lines) + "\n")
    return path


def test_tables_of_vlmevalkit_hold_the_same(tmp_path: Path) -> None:
    """Images in base64, once for all rows that show the same; lists as Python's text."""
    row = {
        "index": "5",
        "image": cell("red"),
        "question": "q?",
        "answer": "['Rome', 'ROMA']",
        "category": "Scene Text-centric VQA",
    }
    path = table(tmp_path, "OCRBench.tsv", row, {**row, "index": "6", "image": "5"})
    task = find_task(f"ocrbench={path}")
    found = samples(task)
    assert [one.images[0].getpixel((0, 0)) for one in found] == [(255, 0, 0)] * 2
    assert found[0].answers == ("Rome", "ROMA")
    assert found[0].labels == {"type": "Scene Text-centric VQA"}
    vet = {**row, "answer": "a<AND>b", "category": "rec,ocr"}
    (one,) = samples(find_task(f"mm_vet(image=before)={table(tmp_path, 'MMVet.tsv', vet)}"))
    assert (one.name, one.answers, one.labels["abilities"]) == ("5", ("a<AND>b",), "ocr+rec")
    problem = {
        **row,
        "answer": "1.20",
        "question_type": "free_form",
        "answer_type": "float",
        "choices": "",
        "task": "geometry",
        "skills": "['reads', 'counts']",
    }
    choice = {**problem, "question_type": "multi_choice", "answer_type": "text", "answer": "up"}
    choice |= {"choices": "['down', 'up']", "index": "7", "skills": "reads"}
    path = table(tmp_path, "MathVista_MINI.tsv", problem, choice)
    task = find_task(f"mathvista(extraction=rules)={path}")
    number, way = samples(task)
    assert [task.metric(said, number) for said in ("1.2", "It is 1.20.", "1.3")] == [1, 1, 0]
    assert [task.metric(said, way) for said in ("(B)", "up", "down")] == [1, 1, 0]
    assert (number.labels["skills"], way.labels["skills"]) == (["reads", "counts"], ["reads"])
