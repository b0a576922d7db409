"""Descriptions: all that stands on a page. Long answers, which show where a cache loses its thread.

The score is ROUGE-L to what is written there; perplexity of that, and ROUGE-L to the full cache's
answer, are measured beside it, as PrefixKV does on its descriptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from foveate.demo.scenes import BUILT_IN, CELL, WIDTH, form, some_facts
from foveate.eval.metrics import rouge_l
from foveate.eval.sample import Sample, Span, task


@task("description", metric=rouge_l, longest=96, reference=True)
def description(count: int, seed: int) -> Iterator[Sample]:
    """All lines of a form; by ROUGE-L and perplexity."""
    for number in range(count):
        r = Random(f"description/{seed}/{number}")
        page = form(r, (BUILT_IN,), some_facts(r, r.randint(3, 6)))
        lines = [(row, text) for row, text in enumerate(page.says) if text]
        yield Sample(
            name=str(number),
            question="Describe this image: write down every line that stands on it.",
            answers=("\n".join(text for _, text in lines),),
            images=(page.image,),
            evidence=tuple(
                Span(text, 0, (0, row * CELL, WIDTH, (row + 1) * CELL)) for row, text in lines
            ),
        )
