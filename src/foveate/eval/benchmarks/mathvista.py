"""MathVista: mathematics in pictures; a language model finds the answer in what was said.

Lu et al., arXiv:2310.02255. From https://github.com/lupantech/MathVista: data/testmini.json,
data/query.json (the authors' prompts) and images/, or from
https://huggingface.co/datasets/AI4Math/MathVista. The judge extracts, rules compare, as the
authors do; the wording of the question to the judge is not theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from PIL import Image

from foveate.data import Folder, Record
from foveate.errors import InvalidInput, MissingPackage
from foveate.eval.benchmarks.folder import benchmark
from foveate.eval.benchmarks.shards import Hub
from foveate.eval.judge import Judge, said_by
from foveate.eval.sample import Sample

FACTS = ("question_type", "answer_type", "precision")
FILES = ("testmini.json", "data/testmini.json")
HUB = Hub(
    repository="AI4Math/MathVista",
    split="testmini",
    image="decoded_image",
    released=FILES,
    columns=("pid", "query", "answer", "choices", *FACTS),
)
EXTRACT = """\
Read a question and the response to it, and copy the final answer out of the response: the
letter or text of a choice, a number, or a list, without unit and without any other word.

Question: {query}

Response: {response}

Final answer:"""


def extracted(judge: Judge, prediction: str, sample: Sample) -> float:
    """1 if the answer that the judge finds in the prediction is the right one. What is a choice or
    a number already is not shown to the judge.
    """
    found = plain_answer(prediction, sample.facts)
    if found is None:
        found = said_by(judge, EXTRACT.format(query=sample.question, response=prediction))
    return float(normalised(found, sample.facts) == sample.answers[0])


def plain_answer(said: str, problem: Mapping[str, Any]) -> str | None:
    """The answer where nothing else was said; None where it has to be found."""
    if not said or (problem["question_type"] == "multi_choice" and said in problem["choices"]):
        return said
    kinds = {"integer": int, "float": float}
    try:
        return str(kinds[problem["answer_type"]](said))
    except (KeyError, ValueError):
        return None


def normalised(found: str, problem: Mapping[str, Any]) -> str | None:
    """A choice's text, or a number as the right answer is written; None where it is none."""
    if problem["question_type"] == "multi_choice":
        return _choice(found.strip(), problem["choices"])
    try:
        if problem["answer_type"] == "integer":
            return str(int(float(found)))
        if problem["answer_type"] == "float":
            return str(round(float(found), int(problem["precision"])))
    except (ValueError, OverflowError):
        return None
    return found


def _choice(found: str, choices: Sequence[str]) -> str:
    """Of the letter in parentheses, or of a letter alone; else the text with the fewest edits."""
    try:
        from rapidfuzz.distance import Levenshtein
    except ImportError as error:
        raise MissingPackage("MathVista", "rapidfuzz", "eval") from error
    if letter := re.search(r"\(([a-zA-Z])\)", found):
        found = letter[1].upper()
    letters = [chr(ord("A") + i) for i in range(len(choices))]
    if found in letters:
        return choices[letters.index(found)]
    return min(choices, key=lambda choice: Levenshtein.distance(found, choice))


@benchmark(
    "mathvista",
    holds="testmini.json, query.json (or data/ with both) and images/",
    hub=HUB,
    judged=extracted,
    longest=512,
    divisible=False,
)
def mathvista(folder: Folder) -> Iterator[Sample]:
    """Mathematics in pictures; a judge finds the answer in what is said."""
    for problem, image in HUB.rows(folder) or _released(folder):
        yield Sample(
            name=problem.text_or_number("pid"),
            question=problem.text("query"),
            answers=(problem.text_or_number("answer"),),
            images=(image,),
            facts=_facts(problem),
        )


def _released(folder: Folder) -> Iterator[tuple[Record, Image.Image]]:
    queries = folder.record("query.json", "data/query.json")
    for name, problem in folder.record(*FILES).items():
        if not queries.has(name):
            raise InvalidInput(f"{queries.where}: there is no prompt for {name!r}.")
        image = folder.image(problem, "image", "{}")
        yield problem.also(pid=name, query=queries.text(name)), image


def _facts(problem: Record) -> dict[str, Any]:
    """What an answer is compared by: the choices of a choice, the digits of a decimal number."""
    chosen, kind = problem.text("question_type"), problem.text("answer_type")
    choices = problem.texts_or_numbers("choices") if problem.has("choices") else ()
    if chosen == "multi_choice" and not choices:
        raise InvalidInput(f"{problem.where}: the field 'choices' is empty; it has to name some.")
    digits = problem.number("precision") if kind == "float" or problem.has("precision") else None
    return {"question_type": chosen, "answer_type": kind, "precision": digits, "choices": choices}
