"""LongBench: 21 sets of long texts, English, Chinese and code.

Bai et al., arXiv:2308.14508. The sets are the files of data.zip from
https://huggingface.co/datasets/THUDM/LongBench; the prompts are dataset2prompt.json, from the
folder LongBench/config of https://github.com/THUDM/LongBench. A sample is asked as the authors do:
six sets without a chat template, and with ``--longest-prompt`` what is too long loses its middle
An answer to samsum may go on behind its first line, which alone is scored; the authors stop there.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from foveate.data import Folder, Record
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark, prompt_with
from foveate_lab.eval.benchmarks.source import Source
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.metrics import longbench as score

SETS: dict[str, tuple[Any, int]] = {
    "narrativeqa": (score.qa_f1, 128),
    "qasper": (score.qa_f1, 128),
    "multifieldqa_en": (score.qa_f1, 64),
    "multifieldqa_zh": (score.qa_f1_zh, 64),
    "hotpotqa": (score.qa_f1, 32),
    "2wikimqa": (score.qa_f1, 32),
    "musique": (score.qa_f1, 32),
    "dureader": (score.rouge_zh, 128),
    "gov_report": (score.rouge, 512),
    "qmsum": (score.rouge, 512),
    "multi_news": (score.rouge, 512),
    "vcsum": (score.rouge_zh, 512),
    "trec": (score.classification, 64),
    "triviaqa": (score.qa_f1, 32),
    "samsum": (score.rouge, 128),
    "lsht": (score.classification, 64),
    "passage_count": (score.count, 32),
    "passage_retrieval_en": (score.retrieval, 32),
    "passage_retrieval_zh": (score.retrieval, 32),
    "lcc": (score.code, 64),
    "repobench-p": (score.code, 64),
}
PROMPTS = (
    "dataset2prompt.json",
    "config/dataset2prompt.json",
    "LongBench/config/dataset2prompt.json",
)
FIRST_LINE = {"trec", "triviaqa", "samsum", "lsht"}  # what follows it is not looked at
PLAIN = FIRST_LINE | {"lcc", "repobench-p"}  # read without a chat template


def scored(prediction: str, sample: Sample) -> float:
    """Return the best answer's score by the metric of the sample's set."""
    name, classes = sample.facts["set"], sample.facts["classes"]
    if name in FIRST_LINE:
        prediction = prediction.lstrip("\n").split("\n")[0]
    metric = SETS[name][0]
    more = (classes,) if metric is score.classification else ()
    return float(max((metric(prediction, answer, *more) for answer in sample.answers), default=0))


def read(name: str, folder: Folder, *, e: bool = False) -> Iterator[Sample]:
    """Yield the samples of one set, or with ``e`` of its part of LongBench-E."""
    rows = sources_of(name, e=e).rows(folder)
    prompt = prompt_with("{context}", folder, name, *PROMPTS)
    before, _, after = prompt.partition("{context}")
    for record, _ in rows:
        classes = record.texts("all_classes") if record.has("all_classes") else ()
        yield Sample(
            name=f"{name}/{record.text_or_number('_id')}",
            question=after.replace("{input}", record.text("input")),
            answers=record.texts("answers", at_least=1),
            context=f"{before}{record.text('context')}",
            facts={"set": name, "classes": classes},
            labels=_labels(name, record),
            between="",
            plain=name in PLAIN,
        )


def sources_of(name: str, *, e: bool = False) -> Sources:
    """Return a set's file, or that of its part of LongBench-E."""
    file = f"{name}_e.jsonl" if e else f"{name}.jsonl"
    return Sources(
        f"LongBench {name}",
        Source(
            contents=f"data/{file} (or {file}) and config/dataset2prompt.json",
            address="https://huggingface.co/datasets/THUDM/LongBench",
            splits={"test": (file,)},
            folders=("", "data/"),
        ),
    )


def _labels(name: str, record: Record) -> dict[str, str]:
    """Return set and language, and the length in words in the classes of LongBench-E."""
    words = record.number("length")
    length = "0-4k" if words < 4000 else "4-8k" if words < 8000 else "8k+"
    return {"set": name, "language": record.text("language"), "length": length}


for _name, (_metric, _longest) in SETS.items():
    Benchmark(
        f"longbench_{_name}",
        partial(sources_of, _name),
        data="longbench",
        metric=scored,
        longest=_longest,
        divisible=False,
        summary=f"LongBench {_name}, by {_metric.__name__.replace('_', ' ')}.",
    )(partial(read, _name))
