"""Benchmarks with one image a question, in the format of their authors' releases."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

from foveate.prompts.manual import manual
from foveate_demo import questions
from foveate_demo.questions import Question
from foveate_demo.scenes import BUILT_IN, Scene, chart, form, some_facts
from foveate_lab.reproduce.stand_in.files import Writer

FONTS = (BUILT_IN,)
KINDS = (
    "Regular Text Recognition",
    "Scene Text-centric VQA",
    "Doc-oriented VQA",
    "Key Information Extraction",
    "Handwritten Mathematical Expression Recognition",
)
ABILITIES = (["rec"], ["ocr", "know"], ["rec", "gen"], ["ocr", "spat"], ["ocr", "math"])
SKILLS = (
    "scientific reasoning",
    "numeric commonsense",
    "arithmetic reasoning",
    "geometry reasoning",
    "algebraic reasoning",
    "logical reasoning",
    "statistical reasoning",
)
TASKS = (
    "textbook question answering",
    "visual question answering",
    "geometry problem solving",
    "math word problem",
    "figure question answering",
)
WORDS = (20, 180, 560)  # lengths of instructions, in turn


def page(r: Random) -> tuple[Scene, Question]:
    """Draw a page, and a question about it."""
    album = questions.document(r, FONTS)
    return album.images[0], r.choice(album.questions)


def pages(writer: Writer, at_least: int = 0) -> Iterator[tuple[int, Scene, Question]]:
    """Yield numbered pages with questions, ``at_least`` so many."""
    for number in range(max(writer.count, at_least)):
        yield number, *page(writer.random(number))


def docvqa(writer: Writer) -> None:
    """Write val_v1.0_withQT.json and documents/."""
    data = [
        {
            "questionId": 1000 + number,
            "question": question.question,
            "question_types": ["form"],
            "image": writer.image(f"documents/page_{number}.png", scene.image),
            "docId": number,
            "data_split": "val",
            "answers": [question.value, question.answer],
        }
        for number, scene, question in pages(writer)
    ]
    head = {"dataset_name": "SP-DocVQA", "dataset_split": "val", "dataset_version": "1.0"}
    writer.json("val_v1.0_withQT.json", {**head, "data": data})


def ocrbench(writer: Writer) -> None:
    """Write OCRBench.json and the images; the kinds of questions in turn."""
    records = [
        {
            "dataset_name": "HME100k" if number % len(KINDS) == 4 else "drawn",
            "type": KINDS[number % len(KINDS)],
            "question": question.question,
            "image_path": writer.image(f"OCRBench_Images/{number}.png", scene.image),
            "answers": [question.value],
        }
        for number, scene, question in pages(writer, len(KINDS))
    ]
    writer.json("OCRBench.json", records)


def textvqa(writer: Writer) -> None:
    """Write TextVQA_0.5.1_val.json and train_images/, with ten answers each."""
    data = []
    for number, scene, question in pages(writer):
        writer.image(f"train_images/{number:016x}.jpg", scene.image)
        data.append(
            {
                "question": question.question,
                "image_id": f"{number:016x}",
                "question_id": 34602 + number,
                "answers": [question.value] * 9 + ["unanswerable"],
                "set_name": "val",
            }
        )
    writer.json("TextVQA_0.5.1_val.json", {"dataset_type": "val", "data": data})


def textcaps(writer: Writer) -> None:
    """Write TextCaps_0.1_val.json and train_images/: a record for each of an image's captions."""
    data: list[dict[str, Any]] = []
    for number in range(writer.count):
        r = writer.random(number)
        scene = form(r, FONTS, some_facts(r, 4), 6)
        writer.image(f"train_images/{number:016x}.jpg", scene.image)
        captions = [
            f"A page that says {name.lower()} is {value}." for name, value, _ in scene.facts
        ] + ["A page with some lines of text."]
        data += [
            {
                "image_id": f"{number:016x}",
                "caption_id": len(captions) * number + index,
                "caption_str": caption,
                "reference_strs": captions,
                "set_name": "val",
            }
            for index, caption in enumerate(captions)
        ]
    writer.json("TextCaps_0.1_val.json", {"dataset_type": "val", "data": data})


def chartqa(writer: Writer) -> None:
    """Write test_human.json, test_augmented.json and png/."""
    for part in ("human", "augmented"):
        records = []
        for number in range(writer.count):
            r = writer.random(f"{part}/{number}")
            scene = chart(r, FONTS, r.randint(4, 7))
            name, value, _ = r.choice(scene.facts)
            image = f"{part}_{number}.png"
            writer.image(f"png/{image}", scene.image)
            records.append({"imgname": image, "query": f"How much is {name}?", "label": value})
        writer.json(f"test_{part}.json", records)


def mm_vet(writer: Writer) -> None:
    """Write mm-vet.json and images/; capabilities in turn."""
    records = {}
    for number, scene, question in pages(writer, len(ABILITIES)):
        name = f"v1_{number}.png"
        writer.image(f"images/{name}", scene.image)
        records[f"v1_{number}"] = {
            "imagename": name,
            "question": question.question,
            "answer": f"{question.value}<OR>{question.answer}",
            "imagesource": "drawn",
            "capability": ABILITIES[number % len(ABILITIES)],
        }
    writer.json("mm-vet.json", records)


def mathvista(writer: Writer) -> None:
    """Write data/testmini.json, data/query.json and images/; choices and numbers in turn."""
    problems, queries = {}, {}
    for number in range(max(writer.count, len(SKILLS))):
        r = writer.random(number)
        scene = chart(r, FONTS, r.randint(4, 6))
        pid, (name, value, _) = str(number + 1), r.choice(scene.facts)
        question = f"How much is {name}?"
        chosen = number % 2 == 0
        values = sorted({fact[1] for fact in scene.facts})
        problems[pid] = {
            "question": question,
            "image": writer.image(f"images/{pid}.jpg", scene.image),
            "choices": values if chosen else None,
            "unit": None,
            "precision": None,
            "answer": value,
            "question_type": "multi_choice" if chosen else "free_form",
            "answer_type": "text" if chosen else "integer",
            "pid": pid,
            "metadata": {
                "category": "general-vqa",
                "context": "bar chart",
                "grade": "daily life",
                "img_height": scene.image.height,
                "img_width": scene.image.width,
                "language": "english",
                "skills": [SKILLS[number % len(SKILLS)]],
                "source": "drawn",
                "split": "testmini",
                "task": TASKS[number % len(TASKS)],
            },
        }
        hint = (
            "Hint: Please answer the question and provide the correct option letter, e.g., A, B, "
            "C, D, at the end.\n"
            if chosen
            else "Hint: Please answer the question requiring an integer answer and provide the "
            "final value, e.g., 1, 2, 3, at the end.\n"
        )
        letters = "".join(f"\n({chr(65 + i)}) {choice}" for i, choice in enumerate(values))
        queries[pid] = f"{hint}Question: {question}" + (f"\nChoices:{letters}" if chosen else "")
    writer.json("data/testmini.json", problems)
    writer.json("data/query.json", queries)


def llava_description(writer: Writer) -> None:
    """Write detail_1k.json and coco/train2017/."""
    records = []
    for number in range(writer.count):
        r = writer.random(number)
        scene = form(r, FONTS, some_facts(r, 4), 6)
        name, value, _ = scene.facts[0]
        description = f"The {name.lower()} is {value}."
        records.append(
            {
                "id": f"{number:012d}",
                "image": writer.image(f"coco/train2017/{number:012d}.jpg", scene.image),
                "conversations": [
                    {"from": "human", "value": "Describe the following image.\n<image>"},
                    {"from": "gpt", "value": description},
                ],
            }
        )
    writer.json("detail_1k.json", records)


def llava_instruct(writer: Writer) -> None:
    """Write llava_v1_5_mix665k.json and the images: two rounds each, of instructions that are
    short, longer and long in turn.
    """
    records = []
    for number in range(max(writer.count, 3 * len(WORDS))):
        r = writer.random(number)
        scene, question = page(r)
        count = WORDS[number % len(WORDS)]
        start = r.randrange(len(manual()) - count)
        long = " ".join(manual()[start : start + count])
        records.append(
            {
                "id": f"{number:012d}",
                "image": writer.image(f"coco/train2017/{number:012d}.jpg", scene.image),
                "conversations": [
                    {"from": "human", "value": "<image>\nWhat kind of image is this?"},
                    {"from": "gpt", "value": "A drawn page with text."},
                    {"from": "human", "value": f"{long}\n{question.question}"},
                    {"from": "gpt", "value": question.answer},
                ],
            }
        )
    writer.json("llava_v1_5_mix665k.json", records)
