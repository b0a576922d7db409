"""Small folders in every form in which the data sets are published, each with one question or two.

A writer gets a folder, and says what the first sample is: its name, its answers, and how many
questions there are. All images are red.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from foveate_lab.eval.benchmarks import mlvu
from tests.eval.benchmarks.test_milebench import content
from tests.videos import film

PROMPTS = {"longdep_qa": "{input}\n{Q}", "longdep_summarization": "{input}", "qasper": "{context}"}
TALK = [{"from": "human", "value": "<image>\nSay."}, {"from": "gpt", "value": "x"}]
PEOPLE = ["stop"] * 10


class First(NamedTuple):
    """What is read of a folder."""

    name: str
    answers: tuple[str, ...]
    count: int
    form: str


class Writes:
    """Files in a folder."""

    def __init__(self, path: Path):
        self.path = path

    def file(self, name: str) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def json(self, name: str, held: Any) -> None:
        self.file(name).write_text(json.dumps(held))

    def lines(self, name: str, *rows: Any) -> None:
        self.file(name).write_text("\n".join(map(json.dumps, rows)))

    def image(self, name: str) -> None:
        Image.new("RGB", (20, 10), "red").save(self.file(name))

    def shard(self, name: str, *rows: dict[str, Any], image: str = "image") -> None:
        held = [{**row, image: {"bytes": red(), "path": row.get("path", "a.png")}} for row in rows]
        pq.write_table(pa.Table.from_pylist(held), self.file(name))

    def rows(self, name: str, *rows: dict[str, Any]) -> None:
        pq.write_table(pa.Table.from_pylist(list(rows)), self.file(name))

    def video(self, name: str) -> None:
        film(self.file(name))

    def table(self, name: str, *rows: dict[str, str], inside: bool = True) -> None:
        cells = {"image": base64.b64encode(red()).decode()} if inside else {}
        held = [{"index": str(i), **cells, **row} for i, row in enumerate(rows)]
        lines = ["\t".join(held[0]), *("\t".join(row.values()) for row in held)]
        self.file(name).write_text("\n".join(lines) + "\n")


def red() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (20, 10), "red").save(out, "PNG")
    return out.getvalue()


FORMS: dict[tuple[str, str], Callable[[Writes], First]] = {}


def form(task: str, name: str) -> Callable[[Callable[[Writes], First]], None]:
    def keep(write: Callable[[Writes], First]) -> None:
        FORMS[task, name] = write

    return keep


def chart(w: Writes, place: str) -> First:
    asked = {"imgname": "a.png", "query": "?", "label": "1"}
    w.json(f"{place}test_human.json", [asked])
    w.json(f"{place}test_augmented.json", [asked])
    w.image(f"{place}png/a.png")
    return First("human/0", ("1",), 2, "the authors")


for _place in ("", "test/", "ChartQA Dataset/test/"):
    form("chartqa", _place or "flat")(lambda w, place=_place: chart(w, place))


@form("chartqa", "the archive with three splits")
def _(w: Writes) -> First:
    for split in ("train", "val"):
        w.json(f"{split}_human.json", [])
        w.json(f"{split}_augmented.json", [])
    return chart(w, "")


def chart_rows(w: Writes, owner: str, **row: Any) -> First:
    w.shard("data/test-00000-of-00001-e2cd0b7a0f9eb20d.parquet", row, row)
    return First("human/0", ("1",), 2, owner)


@form("chartqa", "lmms-lab")
def _(w: Writes) -> First:
    return chart_rows(w, "lmms-lab", type="human_test", question="?", answer="1")


@form("chartqa", "ahmed-masry")
def _(w: Writes) -> First:
    return chart_rows(w, "ahmed-masry", type="human", query="?", label="1")


@form("chartqa", "HuggingFaceM4")
def _(w: Writes) -> First:
    return chart_rows(w, "HuggingFaceM4", human_or_machine=0, query="?", label=["1"])


@form("chartqa", "VLMEvalKit")
def _(w: Writes) -> First:
    w.table("ChartQA_TEST.tsv", {"question": "?", "answer": "1", "split": "test_human"})
    return First("human/0", ("1",), 1, "VLMEvalKit")


def document(w: Writes, file: str, image: str) -> First:
    asked = {"questionId": 7, "question": "?", "image": "documents/a_1.png", "answers": ["x", "y"]}
    w.json(file, {"data": [asked]})
    w.image(image)
    return First("7", ("x", "y"), 1, "the authors")


for _file, _image in (
    ("val_v1.0.json", "documents/a_1.png"),
    ("spdocvqa_qas/val_v1.0_withQT.json", "spdocvqa_images/a_1.png"),
    ("val/val_v1.0.json", "val/documents/a_1.png"),
):
    form("docvqa", _file)(lambda w, file=_file, image=_image: document(w, file, image))


@form("docvqa", "all splits of the archive")
def _(w: Writes) -> First:
    w.json("spdocvqa_qas/train_v1.0_withQT.json", {"data": []})
    w.json("spdocvqa_qas/test_v1.0.json", {"data": []})
    return document(w, "spdocvqa_qas/val_v1.0_withQT.json", "spdocvqa_images/a_1.png")


@form("docvqa", "lmms-lab")
def _(w: Writes) -> First:
    row = {"questionId": "7", "question": "?", "answers": ["x", "y"]}
    w.shard("DocVQA/validation-00000-of-00001.parquet", row)
    w.shard("DocVQA/test-00000-of-00001.parquet", row)
    return First("7", ("x", "y"), 1, "lmms-lab")


@form("docvqa", "VLMEvalKit")
def _(w: Writes) -> First:
    w.table("DocVQA_VAL.tsv", {"question": "?", "answer": "['x', 'y']"})
    return First("0", ("x", "y"), 1, "VLMEvalKit")


for _image in ("train_images/a.jpg", "train_val_images/train_images/a.jpg"):

    @form("textvqa", _image)
    def _(w: Writes, image: str = _image) -> First:
        asked = {"question_id": 7, "question": "?", "image_id": "a", "answers": PEOPLE}
        w.json("TextVQA_0.5.1_val.json", {"data": [asked]})
        w.image(image)
        return First("7", tuple(PEOPLE), 1, "the authors")


@form("textvqa", "lmms-lab")
def _(w: Writes) -> First:
    row = {"question_id": 7, "question": "?", "answers": PEOPLE}
    w.shard("data/validation-00000-of-00001.parquet", row)
    return First("7", tuple(PEOPLE), 1, "lmms-lab")


@form("textvqa", "VLMEvalKit")
def _(w: Writes) -> First:
    w.table("TextVQA_VAL.tsv", {"question": "?", "answer": str(PEOPLE)})
    return First("0", tuple(PEOPLE), 1, "VLMEvalKit")


@form("textcaps", "the authors")
def _(w: Writes) -> First:
    asked = {"image_id": "a", "reference_strs": ["x", "y"]}
    w.json("TextCaps_0.1_val.json", {"data": [asked, asked]})
    w.image("train_images/a.jpg")
    return First("a", ("x", "y"), 1, "the authors")


@form("textcaps", "lmms-lab")
def _(w: Writes) -> First:
    w.shard("data/val-00000-of-00001.parquet", {"image_id": "a", "caption_str": ["x", "y"]})
    return First("a", ("x", "y"), 1, "lmms-lab")


for _file, _image in (
    ("OCRBench.json", "IC/a.png"),
    ("OCRBench.json", "OCRBench_Images/IC/a.png"),
    ("OCRBench/OCRBench.json", "OCRBench_Images/IC/a.png"),
    ("OCRBench.json", "images/IC/a.png"),
):

    @form("ocrbench", f"{_file} and {_image}")
    def _(w: Writes, file: str = _file, image: str = _image) -> First:
        kinds = {"dataset_name": "IC", "type": "Regular Text Recognition", "id": 7}
        w.json(file, [{**kinds, "image_path": "IC/a.png", "question": "?", "answers": ["x"]}])
        w.image(image)
        return First("7", ("x",), 1, "the authors")


@form("ocrbench", "echo840")
def _(w: Writes) -> First:
    row = {"dataset": "IC", "question": "?", "question_type": "Doc", "answer": ["x"]}
    w.shard("data/test-00000-of-00001.parquet", row)
    return First("0", ("x",), 1, "echo840")


@form("ocrbench", "VLMEvalKit")
def _(w: Writes) -> First:
    w.table("OCRBench.tsv", {"question": "?", "answer": "['x']", "category": "Doc"})
    return First("0", ("x",), 1, "VLMEvalKit")


for _place in ("", "data/"):

    @form("mathvista", _place or "flat")
    def _(w: Writes, place: str = _place) -> First:
        kinds = {"question_type": "free_form", "answer_type": "text", "precision": None}
        w.json(f"{place}testmini.json", {"7": {**kinds, "image": "images/7.jpg", "answer": "x"}})
        w.json(f"{place}query.json", {"7": "?", "8": "?"})
        w.image("images/7.jpg")
        return First("7", ("x",), 1, "the authors")


@form("mathvista", "AI4Math")
def _(w: Writes) -> First:
    row = {"pid": "7", "query": "?", "answer": "x", "choices": None, "question_type": "free_form"}
    row |= {"answer_type": "text", "precision": None, "metadata": None}
    w.shard("data/testmini-00000-of-00001.parquet", row, image="decoded_image")
    return First("7", ("x",), 1, "AI4Math")


@form("mathvista", "VLMEvalKit")
def _(w: Writes) -> First:
    kinds = {"question_type": "free_form", "answer_type": "text", "choices": ""}
    more = {"question": "?", "answer": "x", "task": "t", "skills": "['s']"}
    w.table("MathVista_MINI.tsv", {**kinds, **more})
    return First("0", ("x",), 1, "VLMEvalKit")


for _place in ("", "mm-vet/"):

    @form("mm_vet", _place or "flat")
    def _(w: Writes, place: str = _place) -> First:
        asked = {"imagename": "a.png", "question": "?", "answer": "x", "capability": ["rec"]}
        w.json(f"{place}mm-vet.json", {"v1_0": asked})
        w.image(f"{place}images/a.png")
        return First("v1_0", ("x",), 1, "the authors")


@form("mm_vet", "PrefixKV's list")
def _(w: Writes) -> First:
    w.json("mm-vet.json", [{"image": "a.png", "question": "?", "answer": "x"}])
    w.image("images/a.png")
    return First("0", ("x",), 1, "the authors")


@form("mm_vet", "lmms-lab")
def _(w: Writes) -> First:
    row = {"question_id": "v1_0", "question": "?", "answer": "x", "capability": "rec,ocr"}
    w.shard("data/test-00000-of-00001.parquet", row)
    return First("v1_0", ("x",), 1, "lmms-lab")


@form("mm_vet", "VLMEvalKit")
def _(w: Writes) -> First:
    w.table("MMVet.tsv", {"question": "?", "answer": "x", "category": "rec,ocr"})
    return First("0", ("x",), 1, "VLMEvalKit")


BOX = {"bbox": [4, 2, 10, 5], "instruction": "close", "data_type": "icon", "data_source": "ios"}
SPOT = ("mobile/0", (str([4, 2, 10, 5]),), 3)
SCREENS = {"mobile": "mobile_a.png", "desktop": "pc_a.png", "web": "web_a.png"}


@form("screenspot_v2", "the authors")
def _(w: Writes) -> First:
    for screen, name in SCREENS.items():
        w.json(f"screenspot_{screen}_v2.json", [{**BOX, "img_filename": name}])
        w.image(f"screenspotv2_image/{name}")
    return First(*SPOT, "the authors")


@form("screenspot_v2", "lmms-lab")
def _(w: Writes) -> First:
    rows = [{**BOX, "img_filename": name} for name in SCREENS.values()]
    w.shard("data/train-00000-of-00001.parquet", *rows)
    return First(*SPOT, "lmms-lab")


@form("screenspot_v2", "lmms-lab, named in the cells")
def _(w: Writes) -> First:
    rows = [{**BOX, "path": name} for name in SCREENS.values()]
    w.shard("data/train-00000-of-00001.parquet", *rows)
    return First(*SPOT, "lmms-lab")


@form("screenspot_v2", "HongxinLi")
def _(w: Writes) -> First:
    rows = [{**BOX, "bbox": [0.25, 0.5, 0.5, 1.0], "file_name": one} for one in SCREENS.values()]
    w.shard("data/test-00000-of-00002.parquet", *rows[:2])
    w.shard("data/test-00001-of-00002.parquet", *rows[2:])
    return First("mobile/0", (str([5.0, 5.0, 5.0, 5.0]),), 3, "HongxinLi")


@form("screenspot_v2", "VLMEvalKit")
def _(w: Writes) -> First:
    for screen in SCREENS:
        row = {"question": "close", "bbox": "[4, 2, 10, 5]", "data_type": "icon"}
        w.table(f"ScreenSpot_v2_{screen.capitalize()}.tsv", row)
    return First(*SPOT, "VLMEvalKit")


@form("screenspot_v2", "VLMEvalKit, with images beside")
def _(w: Writes) -> First:
    for screen, name in SCREENS.items():
        row = {"instruction": "close", "bbox": "[4, 2, 10, 5]", "data_type": "icon"}
        file = f"ScreenSpot_v2_{screen.capitalize()}.tsv"
        w.table(file, {**row, "img_filename": name}, inside=False)
        w.image(f"screenspotv2_image/{name}")
    return First(*SPOT, "VLMEvalKit")


for _place in ("", "MileBench/"):

    @form("milebench_s5", _place or "flat")
    def _(w: Writes, place: str = _place) -> First:
        asked = {"context": "{image#1} ?", "images_path": ["a.jpg"]}
        w.json(f"{place}nuscenes/nuscenes.json", content("open-ended", {"in": asked, "out": "x"}))
        w.image(f"{place}nuscenes/images/a.jpg")
        return First("nuscenes/0", ("x",), 1, "the authors")


for _file, _prompts in (
    ("data/qasper.jsonl", "config/dataset2prompt.json"),
    ("qasper.jsonl", "dataset2prompt.json"),
    ("data/qasper.jsonl", "LongBench/config/dataset2prompt.json"),
):

    @form("longbench_qasper", f"{_file} and {_prompts}")
    def _(w: Writes, file: str = _file, prompts: str = _prompts) -> First:
        asked = {"_id": "7", "input": "?", "context": "c", "answers": ["x"], "length": 9}
        w.lines(file, {**asked, "language": "en"})
        w.json(prompts, PROMPTS)
        return First("qasper/7", ("x",), 1, "the authors")


QUESTIONS = [{"Q": "?", "A": "x", "S": [], "type": "computation"}, {"Q": "!", "A": "y", "S": []}]
TODAY = {"doc_id": "d", "title": "t", "context": "c", "evidence": ["e"]}


def loogle(w: Writes, file: str, rows: Sequence[Any], by: str, count: int = 2) -> First:
    w.lines(file, *rows)
    w.json("config/task2prompt.json", PROMPTS)
    return First("0/0", ("x",), count, by)


for _file in ("LooGLE-testdata/longdep_qa.jsonl", "data/longdep_qa.jsonl", "longdep_qa.jsonl"):

    @form("loogle_longdep_qa", _file)
    def _(w: Writes, file: str = _file) -> First:
        row = {"input": "c", "title": "t", "qa_pairs": str(QUESTIONS), "output": "none"}
        return loogle(w, file, [row], "the authors")


@form("loogle_longdep_qa", "the hub today")
def _(w: Writes) -> First:
    rows = [{**TODAY, "question": "?", "answer": "x"}, {**TODAY, "question": "!", "answer": "y"}]
    return loogle(w, "data/longdep_qa.jsonl", rows, "bigai-nlco")


@form("loogle_longdep_summarization", "the hub today")
def _(w: Writes) -> First:
    row = {**TODAY, "question": "", "answer": "x"}
    return loogle(w, "data/summarization.jsonl", [row], "bigai-nlco", 1)


@form("llava_description", "the authors")
def _(w: Writes) -> First:
    w.json("detail_1k.json", [{"id": "7", "image": "coco/train2017/a.jpg", "conversations": TALK}])
    w.image("coco/train2017/a.jpg")
    return First("7", ("x",), 1, "the authors")


@form("llava_instruct", "the authors")
def _(w: Writes) -> First:
    asked = {"id": "7", "image": "gqa/images/a.jpg", "conversations": TALK}
    w.json("llava_v1_5_mix665k.json", [asked])
    w.image("gqa/images/a.jpg")
    return First("7", ("x",), 1, "the authors")


for _file in ("a.txt", "PaulGrahamEssays/a.txt"):

    @form("needle_grid", _file)
    def _(w: Writes, file: str = _file) -> First:
        w.file(file).write_text("One. Two. Three.")
        return First("1000/0", ("forty-one",), 1, "the author")


CHOICES = {"question": "?", "options": ["A. red", "B. blue"], "answer": "B"}


@form("videomme", "lmms-lab")
def _(w: Writes) -> First:
    row = {**CHOICES, "videoID": "v", "question_id": "001-1", "duration": "short"}
    w.rows("videomme/test-00000-of-00001.parquet", {**row, "domain": "d", "task_type": "t"})
    w.video("data/v.mp4")
    return First("001-1", ("B",), 1, "lmms-lab")


for _place in ("", "MLVU/"):

    @form("mlvu", _place or "flat")
    def _(w: Writes, place: str = _place) -> First:
        asked = {"question": "?", "candidates": ["red", "blue"], "answer": "blue", "video": "v.mp4"}
        for task in mlvu.TASKS:
            rows = [{**asked, "question_type": "plotQA"}] if task == "1_plotQA" else []
            w.json(f"{place}json/{task}.json", rows)
        w.video(f"{place}video/1_plotQA/v.mp4")
        return First("1_plotQA/0", ("B",), 1, "the authors")


@form("mlvu", "sy1998")
def _(w: Writes) -> First:
    row = {"question": "?\n(A) red\n(B) blue", "answer": "B", "task_type": "plotQA"}
    w.rows("data/test-00000-of-00001.parquet", {**row, "video_name": "1_plotQA/v.mp4"})
    w.video("video/1_plotQA/v.mp4")
    return First("0", ("B",), 1, "sy1998")


for _place in ("", "data/"):

    @form("lvbench", _place or "flat")
    def _(w: Writes, place: str = _place) -> First:
        asked = {"uid": "7", "question": "?\n(A) red\n(B) blue", "answer": "B"}
        asked["question_type"] = ["summarization"]
        w.lines(f"{place}video_info.meta.jsonl", {"key": "v", "type": "cartoon", "qa": [asked]})
        w.video("videos/v.mp4")
        return First("7", ("B",), 1, "the authors")


for _clip in ("chunked_videos/7.mp4", "src_videos/movies/v.mp4"):

    @form("ovo_bench_backward", _clip)
    def _(w: Writes, clip: str = _clip) -> First:
        asked = {"id": 7, "task": "EPM", "video": "movies/v.mp4", "realtime": 2, "question": "?"}
        w.json("ovo_bench_new.json", [{**asked, "options": ["red", "blue"], "gt": 1}])
        w.video(clip)
        return First("7", ("B",), 1, "the authors")


REAL = "Real-Time Visual Understanding"


for _clip in ("sample_1/video.mp4", f"{REAL}/sample_1/video.mp4"):

    @form("streaming_bench_real", _clip)
    def _(w: Writes, clip: str = _clip) -> First:
        line = f"{REAL}_sample_1_2,t,?,00:00:02,B,\"['A. red', 'B. blue']\""
        columns = "question_id,task_type,question,time_stamp,answer,options"
        name = "StreamingBench/Real_Time_Visual_Understanding.csv"
        w.file(name).write_text(f"{columns}\n{line}\n")
        w.video(clip)
        return First(f"{REAL}_sample_1_2", ("B",), 1, "mjuicem")


@form("streaming_bench_real", "the authors")
def _(w: Writes) -> First:
    asked = {**CHOICES, "task_type": "t", "time_stamp": "00:00:02"}
    part = {"video_path": "./videos/sample_1_real.mp4", "questions": [asked]}
    w.json("src/data/questions_real.json", [part])
    w.video("src/data/videos/sample_1_real.mp4")
    return First("0/0", ("B",), 1, "the authors")


FIELDS = {"total": "RM 1,234.50", "date": "1/2/2018", "company": "99 Mart", "address": "1, Jln A"}
RECEIPTS = (
    ("zzzDavid", "data/key/7.json", "data/img/7.jpg"),
    ("the authors", "SROIE2019/train/entities/7.txt", "SROIE2019/train/img/7.jpg"),
    ("the authors", "0325updated.task2train(626p)/7.txt", "0325updated.task2train(626p)/7.jpg"),
)


for _by, _fields, _scan in RECEIPTS:

    @form("sroie", _fields)
    def _(w: Writes, by: str = _by, fields: str = _fields, scan: str = _scan) -> First:
        w.json(fields, FIELDS)
        w.image(scan)
        return First("7/total", (FIELDS["total"],), 4, by)

    @form("sroie_several", _fields)
    def _(w: Writes, by: str = _by, fields: str = _fields, scan: str = _scan) -> First:
        FORMS["sroie", fields](w)
        w.json(fields.replace("7.", "8."), {"company": "Aeon Co", "total": "2.00"})
        w.image(scan.replace("7.", "8."))
        return First("8+7/8", ("2.00",), 2, by)
