"""Generated prompts to measure profiles on: pages, texts with facts, and pages with line boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from PIL import Image

from foveate_demo import questions
from foveate_demo.questions import Album, Question, document
from foveate_demo.scenes import BUILT_IN, CELL, Scene
from foveate_demo.scenes.documents import Fonts
from foveate_demo.scenes.words import FIELDS, PEOPLE

QUESTIONS = 8  # limit of further questions about a prompt, whose answers are measured as well
KINDS: tuple[Callable[[Random, Fonts], Album], ...] = (
    questions.document,
    questions.different_fields,
    questions.bars,
    partial(questions.same_fields, people=4),
    questions.in_image,
    partial(questions.same_fields, people=6),
    partial(questions.same_fields, people=8),
    questions.bars,
)
WORDS = (100, 1200)  # range of the length of a text


def pages(number: int) -> tuple[str, list[Image.Image], list[str]]:
    """Draw prompt ``number``: return its question, its pages, and further questions about them."""
    r = Random(f"contexts/{number}")
    album = KINDS[number % len(KINDS)](r, (BUILT_IN,))
    question = r.choice(album.questions)
    others = r.sample(album.questions, min(QUESTIONS, len(album.questions)))
    return (
        question.question,
        [page.image for page in album.images],
        [other.question for other in others],
    )


def text(number: int, words: Sequence[str]) -> tuple[str, list[str]]:
    """Generate prompt ``number``: a piece of a text (``words``) with facts inserted and a question
    at its end. Return it, and the same piece with each of the questions.
    """
    r = Random(f"contexts/{number}")
    count = r.randint(*WORDS)
    start = r.randrange(len(words) - count)
    piece = list(words[start : start + count])
    facts = [(r.choice(PEOPLE), r.choice(list(FIELDS))) for _ in range(2 + count // 200)]
    for who, what in facts:
        line = f"\n{who}'s {what.lower()}: {FIELDS[what](r)}\n"
        piece.insert(r.randint(0, len(piece)), line)
    texts = [f"{' '.join(piece)}\n\nWhat is {who}'s {what.lower()}?" for who, what in facts]
    return r.choice(texts), texts[:QUESTIONS]


Box = tuple[float, int, float, int]
Line = tuple[str, Box]
"""A line's text, and its box on the page: left, top, right, bottom, in pixels."""


def page_with_lines(seed: int, answer_alone: bool) -> tuple[Question, Image.Image, list[Line]]:
    """Draw a form, receipt, table or sign. Return a question about it, the page, and its lines with
    text, or only the lines with the answer if ``answer_alone``.
    """
    r = Random(f"heads/{seed}")
    (page,), candidates = document(r, (BUILT_IN,))
    question = r.choice(candidates)
    rows = [row for _, row in question.evidence] if answer_alone else range(len(page.texts))
    lines = [(page.texts[row], _box(page, row)) for row in rows if page.texts[row]]
    return question, page.image, lines


def _box(page: Scene, row: int) -> Box:
    middles = page.where[row].values()
    return min(middles), row * CELL, max(middles), (row + 1) * CELL
