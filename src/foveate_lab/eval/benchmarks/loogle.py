"""LooGLE: long documents after 2022, with questions on one place in them, or on several.

Li et al., arXiv:2311.04939; its forms are in loogle_forms.py. The prompts are those of
config/task2prompt.json in https://github.com/bigai-nlco/LooGLE. A prompt is read without a chat
template, and with ``--longest-prompt`` it loses its middle, both as the authors do. Departures:
answers are greedy without their repetition penalty of 2; of their scores there are ROUGE-L's recall
and the cloze's matches, whose mean is over questions, theirs over masks.

MixKV's Table 5 takes ``longdep_qa`` as HeadKV does (arXiv:2410.19258): ``metric=f1``, LongBench's,
with ``chat=true`` and answers of 64 tokens, 32 for computations and timelines (``longest``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Literal, get_args

from foveate.data import Folder, Record
from foveate.errors import InvalidInput
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark, prompt_with
from foveate_lab.eval.benchmarks.loogle_forms import PROMPTS, sources_of
from foveate_lab.eval.metrics import longbench, loogle

Kind = Literal[
    "comprehension_and_reasoning",
    "computation",
    "multiple_information_retrieval",
    "timeline_reorder",
]
TEXT_METRICS = {"rouge_l": loogle.recall, "f1": longbench.qa_f1}
CLOZE_METRICS = {"exact": loogle.exact_match, "partial": loogle.partial_match}


def scored(prediction: str, sample: Sample) -> float:
    """Return the score by the metric among the sample's facts."""
    metric = sample.facts["metric"]
    if metric in CLOZE_METRICS:
        return CLOZE_METRICS[metric](prediction, sample.facts["masks"])
    return TEXT_METRICS[metric](prediction, sample.answers[0])


def _samples(
    name: str, folder: Folder, metric: str, chat: bool, kind: str | None = None
) -> Iterator[Sample]:
    records = (record for record, _ in sources_of(name).rows(folder))
    prompt = prompt_with("{input}", folder, name, *PROMPTS)
    before, _, after = prompt.replace("{{", "{").replace("}}", "}").partition("{input}")
    for record in _of_kind(records, kind, folder):
        masks = _masks(record) if metric in CLOZE_METRICS else {}
        answer = str(masks) if masks else record.text_or_number("A")
        yield Sample(
            name=record.text("name"),
            question=after.replace("{Q}", record.text("Q")),
            answers=(answer,),
            context=f"{before}{record.text('input')}",
            facts={"metric": metric, "masks": masks},
            labels={"type": record.text("type")} if record.has("type") else {},
            between="",
            plain=not chat,
        )


def _of_kind(records: Iterator[Record], kind: str | None, folder: Folder) -> Iterator[Record]:
    """Yield the questions of one kind; refuse a file without any kinds."""
    known = False
    for record in records:
        own = record.text("type") if record.has("type") else ""
        known = known or own in get_args(Kind)
        if kind in (None, own):
            yield record
    if kind and not known:
        raise InvalidInput(
            f"{str(folder.path)!r} has no question that says its kind (the field 'type'): give "
            "LooGLE-testdata/longdep_qa.jsonl of the authors' repository, which does."
        )


def _masks(record: Record) -> Mapping[str, str]:
    """Return the entity behind every mask."""
    answer = record.fields.get("A")
    masks = answer if isinstance(answer, Mapping) else loogle.mapping(str(answer))
    if not masks:
        raise InvalidInput(
            f"{record.where}: the field 'A' is {answer!r}; it has to be a dictionary of masks."
        )
    return {str(mask): str(entity) for mask, entity in masks.items()}


def _texts(
    name: str,
    folder: Folder,
    *,
    metric: Literal["rouge_l", "f1"] = "rouge_l",
    chat: bool = False,
) -> Iterator[Sample]:
    return _samples(name, folder, metric, chat)


def _texts_of_kind(
    name: str,
    folder: Folder,
    *,
    kind: Kind | None = None,
    metric: Literal["rouge_l", "f1"] = "rouge_l",
    chat: bool = False,
) -> Iterator[Sample]:
    return _samples(name, folder, metric, chat, kind)


def _cloze(
    name: str,
    folder: Folder,
    *,
    metric: Literal["exact", "partial"] = "exact",
    chat: bool = False,
) -> Iterator[Sample]:
    return _samples(name, folder, metric, chat)


for _name, _read, _longest, _summary in (
    ("shortdep_qa", _texts, 300, "Questions on one place of a long document"),
    ("longdep_qa", _texts_of_kind, 500, "Questions on several places of a document"),
    ("longdep_summarization", _texts, 500, "Summaries of papers"),
    ("shortdep_cloze", _cloze, 50, "Entities that stand for masks"),
):
    _score = "the share that is right" if _read is _cloze else "ROUGE-L's recall"
    Benchmark(
        f"loogle_{_name}",
        sources_of(_name),
        data="loogle",
        metric=scored,
        longest=_longest,
        divisible=False,
        summary=f"{_summary}, by {_score}.",
    )(partial(_read, _name))
