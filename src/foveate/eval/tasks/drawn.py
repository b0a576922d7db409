"""Questions about drawn pages, charts and pictures, which the demo model can read, too.

The line in which the answer stands is the evidence. A right answer repeats what is asked for
("Room: 214"), as the demo model was taught, or gives the value alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from foveate.demo import questions
from foveate.demo.questions import Album
from foveate.demo.scenes import BUILT_IN, CELL, WIDTH
from foveate.demo.scenes.documents import Fonts
from foveate.eval.metrics import anls, exact, relaxed
from foveate.eval.sample import TASKS, Sample, Span, Task

Draw = Callable[[Random, Fonts], Album]
FONTS: Fonts = (BUILT_IN,)


def _drawn(name: str, kind: Draw) -> Callable[[int, int], Iterator[Sample]]:
    def samples(count: int, seed: int) -> Iterator[Sample]:
        for number in range(count):
            r = Random(f"{name}/{seed}/{number}")
            album = kind(r, FONTS)
            asked = r.choice(album.questions)
            yield Sample(
                name=str(number),
                question=asked.question,
                answers=(asked.answer, asked.value),
                images=tuple(page.image for page in album.images),
                evidence=tuple(
                    Span(album.images[i].says[row], i, (0, row * CELL, WIDTH, (row + 1) * CELL))
                    for i, row in asked.evidence
                ),
            )

    return samples


for _name, _kind, _metric, _summary in (
    ("document", questions.document, anls, "One form, receipt, table or sign, and a field of it."),
    ("three_documents", questions.different_fields, anls, "Three forms, and a field of one."),
    (
        "three_people",
        questions.same_fields,
        anls,
        "Three forms with the same fields, of three people.",
    ),
    ("image_order", questions.in_image, anls, "Three forms; the question says in which to look."),
    ("image_needle", questions.which_image, exact, "Three forms; which of them has the field."),
    ("chart", questions.bars, relaxed, "The value of a bar."),
    ("naming", questions.naming, exact, "What a small picture among some text shows."),
    ("naming_needle", questions.which_picture, exact, "Three pictures; which of them shows it."),
):
    TASKS[_name] = Task(_name, _summary, _drawn(_name, _kind), _metric, longest=16)
