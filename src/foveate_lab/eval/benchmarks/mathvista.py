"""MathVista: mathematics in pictures; a language model finds the answer in what was said.

Lu et al., arXiv:2310.02255. From https://github.com/lupantech/MathVista: data/testmini.json,
data/query.json (the authors' prompts) and images/; from
https://huggingface.co/datasets/AI4Math/MathVista; or as VLMEvalKit's MathVista_MINI.tsv. What is
said is taken to pieces as the authors do: an extraction, which the judge makes; its normalisation
to the type of the answer; and whether both are equal. The judge is asked in this package's words:
put the authors' examples into the folder as extract.txt and it is asked as they do. With
``extraction=rules`` no judge is asked: the answer is a choice or the last number that is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from foveate.data import Folder, Record, listed, read_record, read_text
from foveate.errors import InvalidInput
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import Source, in_kit, on_hub
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.judge import Judge, reply_of
from foveate_lab.eval.metrics.mathvista import normalised, plain_answer, quoted

FACTS = ("question_type", "answer_type", "precision")
TABLED = ("answer", "choices", "question_type", "answer_type", "task", "skills")
LABELS = ("task", "category", "context", "grade", "language", "source")
EXTRACT = """\
Read a question and the response to it, and copy the final answer out of the response: the
letter or text of a choice, a number, or a list, without unit and without any other word.

Question: {query}

Response: {response}

Final answer:"""


def extracted(judge: Judge, prediction: str, sample: Sample) -> float | None:
    """1 if the answer that the judge finds in the prediction is the right one. What is a choice or
    a number already is not shown to the judge.
    """
    if sample.facts["extraction"] == "rules":
        return by_rules(prediction, sample)
    answer = plain_answer(prediction, sample.facts)
    if answer is None:
        answer = reply_of(judge, _judge_prompt(prediction, sample))
    return right(answer, sample)


def _judge_prompt(prediction: str, sample: Sample) -> str:
    """Return the judge's prompt, in the authors' form behind their examples if those are there."""
    examples = sample.facts["examples"]
    if not examples:
        return EXTRACT.format(query=sample.question, response=prediction)
    return f"{examples.strip()}\n\n{sample.question}\n\n{prediction}\n\nExtracted answer: "


def by_rules(prediction: str, sample: Sample) -> float | None:
    """Return 1 if the prediction's answer is right, else 0; None where a judge has to find it."""
    if sample.facts["extraction"] != "rules":
        return None
    answer = plain_answer(prediction, sample.facts)
    return right(quoted(prediction, sample.facts) if answer is None else answer, sample)


def right(answer: str, sample: Sample) -> float:
    """Return 1 if the answer that was found is the right one, else 0."""
    return float(normalised(answer, sample.facts) == sample.facts["answer"])


def _with_queries(paths: Sequence[Path]) -> Iterator[Record]:
    problems, queries = map(read_record, paths)
    for name, problem in problems.items():
        if not queries.has(name):
            raise InvalidInput(f"{queries.where}: there is no prompt for {name!r}.")
        yield problem.also(pid=name, query=queries.text(name))


SOURCES = Sources(
    "MathVista",
    Source(
        contents="testmini.json, query.json (or data/ with both) and images/",
        address="https://github.com/lupantech/MathVista",
        splits={"testmini": ("testmini.json", "query.json")},
        folders=("", "data/"),
        read=_with_queries,
        image_fields=("image",),
    ),
    on_hub(
        "AI4Math/MathVista",
        "testmini",
        *("pid", "query", "answer", "choices", *FACTS, "metadata"),
        image_column="decoded_image",
    ),
    in_kit(
        "MathVista_MINI.tsv",
        "testmini",
        {"index": "pid", "question": "query", **dict(zip(TABLED, TABLED, strict=True))},
    ),
)


@Benchmark(
    "mathvista",
    SOURCES,
    metric=by_rules,
    judged=extracted,
    longest=512,
    divisible=False,
)
def mathvista(
    folder: Folder, *, extraction: Literal["judge", "rules"] = "judge"
) -> Iterator[Sample]:
    """Mathematics in pictures; a judge finds the answer in what is said."""
    own = folder.find("extract.txt")
    examples = read_text(own[0]) if own else ""
    for problem, images in SOURCES.rows(folder):
        facts = _facts(problem)
        yield Sample(
            name=problem.text_or_number("pid"),
            question=problem.text("query"),
            answers=(problem.text_or_number("answer"),),
            images=images,
            facts={**facts, "extraction": extraction, "examples": examples},
            labels={
                "question_type": facts["question_type"],
                "answer_type": facts["answer_type"],
                **_labels(problem),
            },
        )


def _facts(problem: Record) -> dict[str, Any]:
    """Return the answer and what it is compared by: choices, or the digits of a decimal number,
    which a table lacks.
    """
    chosen, kind = problem.text("question_type"), problem.text("answer_type")
    tabled = "index" in problem.fields
    if tabled and problem.has("choices"):
        problem = listed(problem, "choices")
    choices = problem.texts_or_numbers("choices") if problem.has("choices") else ()
    if chosen == "multi_choice" and not choices:
        raise InvalidInput(f"{problem.where}: the field 'choices' is empty; it has to name some.")
    has_digits = not tabled and (kind == "float" or problem.has("precision"))
    digits = problem.number("precision") if has_digits else None
    facts = {"question_type": chosen, "answer_type": kind, "precision": digits, "choices": choices}
    answer = problem.text_or_number("answer")
    if tabled and chosen != "multi_choice":
        answer = normalised(answer, facts) or answer
    return {**facts, "answer": answer}


def _labels(problem: Record) -> dict[str, Any]:
    """Return the classes that the authors report, from a table's columns or from metadata."""
    if "index" in problem.fields:
        several = problem.has("skills") and problem.text("skills").startswith("[")
        skills = listed(problem, "skills") if several else problem
        return {"task": problem.text("task"), "skills": list(skills.one_or_more("skills"))}
    if not problem.has("metadata"):
        return {}
    about = problem.record("metadata")
    labels: dict[str, Any] = {name: about.text(name) for name in LABELS if about.has(name)}
    return labels | ({"skills": list(about.texts("skills"))} if about.has("skills") else {})
