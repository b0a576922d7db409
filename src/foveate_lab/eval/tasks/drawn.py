"""Tasks on drawn pages: questions about forms, charts and pictures; a description; a difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

from foveate.prompts.sample import Sample, Span
from foveate_demo import questions
from foveate_demo.questions import Album, Question
from foveate_demo.scenes import BUILT_IN, CELL, WIDTH, Scene, form, some_facts
from foveate_demo.scenes.documents import Facts, Fonts
from foveate_demo.scenes.words import FIELDS
from foveate_lab.eval.metrics import anls, exact, has_words, relaxed, rouge_l
from foveate_lab.eval.task_registry import TASKS, Task, task

Draw = Callable[[Random, Fonts], Album]
FONTS: Fonts = (BUILT_IN,)


def _drawn(name: str, kind: Draw) -> Callable[[int, int], Iterator[Sample]]:
    def samples(count: int, seed: int) -> Iterator[Sample]:
        for number in range(count):
            r = Random(f"{name}/{seed}/{number}")
            album = kind(r, FONTS)
            yield sample_of(str(number), album, r.choice(album.questions))

    return samples


def sample_of(name: str, album: Album, question: Question) -> Sample:
    """Build a sample of one question about the pages of an album."""
    return Sample(
        name=name,
        question=question.question,
        answers=(question.answer, question.value),
        images=tuple(page.image for page in album.images),
        evidence=tuple(
            Span(album.images[i].texts[row], i, (0, row * CELL, WIDTH, (row + 1) * CELL))
            for i, row in question.evidence
        ),
    )


for _name, _kind, _metric, _summary in (
    ("document", questions.document, anls, "One form, receipt, table or sign, and a field of it."),
    ("three_documents", questions.different_fields, anls, "Three forms, and a field of one."),
    (
        "three_people",
        questions.same_fields,
        anls,
        "Three forms with the same fields, of three people.",
    ),
    (
        "eight_people",
        partial(questions.same_fields, people=8),
        anls,
        "Eight forms with the same fields, of eight people.",
    ),
    (
        "sixteen_people",
        partial(questions.same_fields, people=16),
        anls,
        "Sixteen forms with the same fields, of sixteen people.",
    ),
    (
        "mixed",
        partial(questions.mixed, images=8),
        anls,
        "A chart, a receipt, a table and five people's forms.",
    ),
    ("image_order", questions.in_image, anls, "Three forms; the question says in which to look."),
    ("image_needle", questions.which_image, exact, "Three forms; which of them has the field."),
    ("chart", questions.bars, relaxed, "The value of a bar."),
    ("naming", questions.naming, exact, "What a small picture among some text shows."),
    ("naming_needle", questions.which_picture, exact, "Three pictures; which of them shows it."),
):
    TASKS[_name] = Task(_name, _summary, _drawn(_name, _kind), _metric, longest=16)


@task("description", metric=rouge_l, longest=96, reference=True)
def description(count: int, seed: int) -> Iterator[Sample]:
    """Transcribe all lines of a form; by ROUGE-L and perplexity."""
    for number in range(count):
        r = Random(f"description/{seed}/{number}")
        page = form(r, (BUILT_IN,), some_facts(r, r.randint(3, 6)))
        lines = [(row, text) for row, text in enumerate(page.texts) if text]
        yield Sample(
            name=str(number),
            question="Describe this image: write down every line that stands on it.",
            answers=("\n".join(text for _, text in lines),),
            images=(page.image,),
            evidence=tuple(
                Span(text, 0, (0, row * CELL, WIDTH, (row + 1) * CELL)) for row, text in lines
            ),
        )


FACTS = 4
NAMES = sorted(set(FIELDS) - {"Date"})  # "Due date" contains it, too


@task("spot_the_difference", metric=has_words)
def spot_the_difference(count: int, seed: int) -> Iterator[Sample]:
    """Find the field with a changed value in two drawings of one form."""
    for number in range(count):
        r = Random(f"spot_the_difference/{seed}/{number}")
        facts = list(some_facts(r, FACTS, NAMES))
        index = r.randrange(FACTS)
        name, value = facts[index]
        other = _another(r, name, value)
        changed = [*facts[:index], (name, other), *facts[index + 1 :]]
        pages = _alike(r, (facts, changed))
        yield Sample(
            name=str(number),
            question="The two images differ in one line. Which field has changed?",
            answers=(name,),
            images=tuple(page.image for page in pages),
            evidence=tuple(_line(page, i, index) for i, page in enumerate(pages)),
            facts={"values": (value, other)},
        )


def _alike(r: Random, both: Sequence[Facts]) -> list[Scene]:
    """Draw one page for each set of facts in the same style.

    Retries with another style if the changed line moves others, for example because it is too long
    for a column.
    """
    while True:
        style_seed = r.getrandbits(32)
        pages = [form(Random(style_seed), (BUILT_IN,), facts, rows=6) for facts in both]
        rows = range(len(pages[0].texts))
        if sum(pages[0].where[row] != pages[1].where[row] for row in rows) <= 1:
            return pages


def _line(page: Scene, image: int, index: int) -> Span:
    row = page.facts[index][2]
    return Span(page.texts[row], image, (0, row * CELL, WIDTH, (row + 1) * CELL))


def _another(r: Random, name: str, value: str) -> str:
    """Draw another value of the field."""
    while (other := FIELDS[name](r)) == value:
        continue
    return other
