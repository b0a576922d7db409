"""LooGLE's files in both forms, as one record for each question.

The authors' repository, and data.zip on the hub until 2024, have a document a line with all its
questions; the hub has a question a line today, with its document. Records come as ``name``,
``input``, ``Q``, ``A``, and the ``type`` of a question where the file says it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from foveate.data import Record, read_lines
from foveate.errors import InvalidInput
from foveate_lab.eval.benchmarks.source import Source
from foveate_lab.eval.benchmarks.sources import Sources

PLACES = ("", "LooGLE-testdata/", "data/")
PROMPTS = ("task2prompt.json", "config/task2prompt.json", "LooGLE/config/task2prompt.json")
TODAY = {"longdep_summarization": "summarization"}  # what the hub calls a set, if otherwise


def sources_of(name: str) -> Sources:
    """Return a set's file in both published forms."""
    today = TODAY.get(name, name)
    return Sources(
        f"LooGLE {name}",
        Source(
            contents=f"LooGLE-testdata/{name}.jsonl and config/task2prompt.json",
            address="https://github.com/bigai-nlco/LooGLE",
            splits={"test": (f"{name}.jsonl",)},
            folders=PLACES,
            columns=("input",),
            read=_by_document,
        ),
        Source(
            publisher="bigai-nlco",
            contents=f"data/{today}.jsonl of bigai-nlco/LooGLE and config/task2prompt.json of the "
            "authors' repository",
            address="https://huggingface.co/datasets/bigai-nlco/LooGLE",
            splits={"test": (f"{today}.jsonl",)},
            folders=PLACES,
            columns=("context",),
            read=_by_question,
        ),
    )


def _by_document(paths: Sequence[Path]) -> Iterator[Record]:
    for number, record in enumerate(read_lines(paths[0])):
        for index, question in enumerate(asked_of(record)):
            yield question.also(name=f"{number}/{index}", input=record.text("input"))


def _by_question(paths: Sequence[Path]) -> Iterator[Record]:
    """Yield questions, numbered within documents, which are numbered as they come."""
    counts: dict[str, list[int]] = {}
    for record in read_lines(paths[0]):
        document = record.text_or_number("doc_id" if record.has("doc_id") else "context")
        number, index = entry = counts.setdefault(document, [len(counts), 0])
        entry[1] += 1
        answer = record.fields.get("answer")
        yield record.also(
            type=record.fields.get("type", record.fields.get("task")),
            name=f"{number}/{index}",
            input=record.text("context"),
            Q=record.text("question") if record.has("question") else "",
            A=answer if isinstance(answer, Mapping) else record.text_or_number("answer"),
        )


def asked_of(record: Record) -> list[Record]:
    """Return the questions of a document, which are a list or the Python text of one; without any,
    the document is to be summarized.
    """
    pairs = record.fields.get("qa_pairs", "none")
    if pairs == "none":
        return [record.also(Q="", A=record.text("output"))]
    if isinstance(pairs, str):
        try:
            pairs = ast.literal_eval(pairs)
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise InvalidInput(
                f"{record.where}: the field 'qa_pairs' is no list of questions ({error})."
            ) from error
    return record.also(qa_pairs=pairs).records("qa_pairs", at_least=1)
