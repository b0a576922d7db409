"""Long texts: pieces of Python's manual with a fact in them, which the question is about."""

from __future__ import annotations

from typing import Any

from foveate.prompts.manual import manual
from foveate_demo.scenes.words import FIELDS, OWNED, PEOPLE
from foveate_lab.eval.benchmarks.longbench import SETS
from foveate_lab.reproduce.stand_in.files import Writer

WORDS = 160
ANSWERS = {  # of sets whose scores need answers of a certain form
    "trec": "number",
    "lsht": "number",
    "passage_count": "3",
    "passage_retrieval_en": "Paragraph 3",
    "passage_retrieval_zh": "段落3",
}
CLASSES = ("number", "person", "place")
PROMPT = "Read the text and answer.\n\n{context}\n\nQuestion: {input}\nAnswer:"


def longbench(writer: Writer) -> None:
    """Write data/SET.jsonl of all sets, and config/dataset2prompt.json."""
    for name in SETS:
        records = (_record(writer, name, number) for number in range(writer.count))
        writer.lines(f"data/{name}.jsonl", records)
    writer.json("config/dataset2prompt.json", dict.fromkeys(SETS, PROMPT))


def _record(writer: Writer, name: str, number: int) -> dict[str, Any]:
    r = writer.random(f"{name}/{number}")
    who, field = r.choice(PEOPLE), r.choice(OWNED)
    value = FIELDS[field](r)
    start = r.randrange(len(manual()) - WORDS)
    words = list(manual()[start : start + WORDS])
    words.insert(r.randint(0, WORDS), f"\n{who}'s {field.lower()}: {value}\n")
    return {
        "input": f"What is {who}'s {field.lower()}?",
        "context": " ".join(words),
        "answers": [ANSWERS.get(name, value)],
        "length": WORDS,
        "dataset": name,
        "language": "en",
        "all_classes": list(CLASSES) if name in ("trec", "lsht") else None,
        "_id": f"{name}-{number}",
    }


KINDS = (
    "comprehension_and_reasoning",
    "computation",
    "multiple_information_retrieval",
    "timeline_reorder",
)


def loogle(writer: Writer) -> None:
    """Write LooGLE-testdata/longdep_qa.jsonl, with questions of all kinds on every document."""
    records = []
    for number in range(writer.count):
        documents = [_record(writer, f"{kind}", number) for kind in KINDS]
        kinds = [
            {"Q": document["input"], "A": document["answers"][0], "S": [], "type": kind}
            for kind, document in zip(KINDS, documents, strict=True)
        ]
        text = " ".join(document["context"] for document in documents)[: 6 * WORDS]
        records.append(
            {"input": text, "title": str(number), "qa_pairs": str(kinds), "output": "none"}
        )
    writer.lines("LooGLE-testdata/longdep_qa.jsonl", records)
    prompt = "Read the text and answer.\n\n{input}\n\nQuestion: {Q}\nAnswer:"
    writer.json("config/task2prompt.json", {"longdep_qa": prompt})


def needle(writer: Writer) -> None:
    """Write a text file to hide lines in."""
    words = manual()[: 4 * WORDS]
    sentences = (" ".join(words[start : start + 10]) for start in range(0, len(words), 10))
    writer.text("manual.txt", ". ".join(sentences) + ".")
