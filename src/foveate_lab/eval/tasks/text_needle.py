"""A needle line in a long text, which is taken from Python's manual.

Every Python contains the manual's topics (``pydoc_data.topics``); the text differs between
versions of Python. After Kamradt's needle in a haystack
(https://github.com/gkamradt/LLMTest_NeedleInAHaystack).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

from foveate.prompts.manual import manual
from foveate.prompts.sample import Sample, Span
from foveate_demo.scenes.words import FIELDS, OWNED, PEOPLE
from foveate_lab.eval.metrics import has_words
from foveate_lab.eval.task_registry import TASKS, Task

SHORT, LONG = 90, 2000  # words of the text around the needle


def samples(name: str, words: int) -> Callable[[int, int], Iterator[Sample]]:
    """Return a function that draws samples with ``words`` words around the needle."""

    def draw(count: int, seed: int) -> Iterator[Sample]:
        for number in range(count):
            r = Random(f"{name}/{seed}/{number}")
            start = r.randrange(len(manual()) - words)
            text, depth = manual()[start : start + words], r.randint(0, words)
            field = r.choice(OWNED)
            owned, value = f"{r.choice(PEOPLE)}'s {field.lower()}", FIELDS[field](r)
            needle = f"{owned}: {value}"
            yield Sample(
                name=str(number),
                question=f"What is {owned}?",
                answers=(value,),
                context="\n".join(
                    part
                    for part in (" ".join(text[:depth]), needle, " ".join(text[depth:]))
                    if part
                ),
                evidence=(Span(needle),),
                facts={"depth": depth / words},
            )

    return draw


for _name, _words in (("text_needle", SHORT), ("text_needle_long", LONG)):
    _summary = f"A line that does not belong into {_words:,} words of Python's manual."
    TASKS[_name] = Task(_name, _summary, samples(_name, _words), has_words, longest=16)
