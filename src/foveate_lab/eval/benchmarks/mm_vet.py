"""MM-Vet: questions that need several abilities at once; a language model grades the answers.

Yu et al., arXiv:2308.02490. From https://github.com/yuweihao/MM-Vet (mm-vet.zip), as the list that
https://github.com/THU-MIG/PrefixKV links to, from https://huggingface.co/datasets/lmms-lab/MMVet,
or as VLMEvalKit's MMVet.tsv. PrefixKV measures perplexity of the answers, and ROUGE-L to the full
cache's, which need no judge, on all 218, with the image behind the question, in the conversation
``llava_v1``; ``image=before`` puts it first, as all others do.

The judge is asked as the authors ask theirs: what to do, a table of graded examples, and in its
last row the question, the ground truth, the prediction and a place for the grade. Words and
examples are this package's own: put the authors' into the folder as judge.txt and they are used.
Scores with another prompt, or another judge than theirs, are not those of published tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from foveate.data import Folder, Record, read_text
from foveate.data.records import read_named
from foveate.errors import InvalidInput
from foveate.prompts.sample import PLACE, Sample
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import Source, in_kit, on_hub
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.judge import Judge, reply_of

PREFIXKV = {"llava-1.5": "llava_v1", "llava-next-vicuna": "llava_v1"}
"""Conversations of PrefixKV's eval_ppl.py and eval_rouge.py, for every model of Vicuna."""

GRADE = """\
Grade how correct a prediction is, from 0.0 (nothing is right) to 1.0 (all is right), in steps of
0.1. Where the ground truth has <AND>, the prediction needs every part; where it has <OR>, one part
is enough. Reply with the number alone.

Question | Ground truth | Prediction | Correctness
--- | --- | --- | ---
Which two animals are on the sign? | a goose <AND> a hare | A goose. | 0.5
Which two animals are on the sign? | a goose <AND> a hare | A hare and a goose. | 1.0
Which two animals are on the sign? | a goose <AND> a hare | Two horses. | 0.0
How much is the ticket? | 7.50 <OR> seven and a half euros | 7.50 | 1.0
What is odd here? | The man irons his shirt on the roof of a moving taxi. | A man on a car. | 0.3"""


def graded(judge: Judge, prediction: str, sample: Sample) -> float:
    """Return the judge's grade, 0 to 1.

    Raises:
        InvalidInput: the reply is anything else.
    """
    truth = sample.answers[0].replace("<AND>", " <AND> ").replace("<OR>", " <OR> ")
    question = sample.question.replace(PLACE, "").strip()
    row = " | ".join([question, truth, prediction, ""])
    reply = reply_of(judge, f"{sample.facts['prompt']}\n{row}")
    number = re.match(r"[01](?:\.\d+)?(?![\d.]*\d)", reply)
    if not number or float(number[0]) > 1:
        raise InvalidInput(
            f"the judge was asked for a number from 0 to 1 and said {reply!r} of {sample.name}."
        )
    return float(number[0])


def _named(paths: Sequence[Path]) -> Iterator[Record]:
    return (record.also(question_id=name) for name, record in read_named(paths[0]))


SOURCES = Sources(
    "MM-Vet",
    Source(
        contents="mm-vet.json (or mm-vet/ with it) and images/; mm-vet.json may be PrefixKV's list",
        address="https://github.com/yuweihao/MM-Vet",
        splits={"test": ("mm-vet.json",)},
        folders=("", "mm-vet/"),
        read=_named,
        image_fields=("imagename", "image"),
        image_places=("images/{}", "{}", "mm-vet/images/{}"),
    ),
    on_hub("lmms-lab/MMVet", "test", "question_id", "question", "answer", "capability"),
    in_kit(
        "MMVet.tsv",
        "test",
        {
            "index": "question_id",
            "question": "question",
            "answer": "answer",
            "category": "capability",
        },
    ),
)


@Benchmark(
    "mm_vet",
    SOURCES,
    judged=graded,
    longest=1024,
    reference=True,
    divisible=False,
    conversations=lambda image="after": PREFIXKV if image == "after" else {},
)
def mm_vet(folder: Folder, *, image: Literal["after", "before"] = "after") -> Iterator[Sample]:
    """Questions that need several abilities at once; graded by a judge."""
    own = folder.find("judge.txt")
    prompt = read_text(own[0]) if own else GRADE
    for record, images in SOURCES.rows(folder):
        question, abilities = record.text("question"), _abilities(record)
        yield Sample(
            name=record.text_or_number("question_id"),
            question=f"{question}\n{PLACE}" if image == "after" else question,
            answers=(record.text_or_number("answer"),),
            images=images,
            facts={"prompt": prompt},
            labels={"capability": abilities, "abilities": "+".join(sorted(abilities))},
        )


def _abilities(record: Record) -> list[str]:
    """Return the abilities, from a list or a text with commas; PrefixKV's list has none."""
    if not record.has("capability"):
        return []
    return [word for text in record.one_or_more("capability") for word in text.split(",")]
