"""Long answers, during which new tokens outweigh the prompt's share of the cache.

The text is Python's manual. The measure is the likelihood of its continuation (``reference_nll``,
and perplexity), fed token by token where a policy compresses while decoding (``when=over_budget``,
``fixed_slot``): text that small models generate at such length repeats itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from foveate.prompts.manual import manual
from foveate.prompts.sample import Sample
from foveate_lab.eval.metrics import rouge_l
from foveate_lab.eval.task_registry import task

# words of context, of which the last are the question; words of the reference; answer tokens
READ, ASKED, TOLD, LONGEST = 300, 40, 400, 640


@task("long_answer", metric=rouge_l, longest=LONGEST, reference=True, divisible=False)
def long_answer(count: int, seed: int) -> Iterator[Sample]:
    """Continue Python's manual by 400 words after 300; by perplexity and ROUGE-L."""
    for number in range(count):
        r = Random(f"long_answer/{seed}/{number}")
        start = r.randrange(len(manual()) - READ - TOLD)
        read = manual()[start : start + READ]
        passage = manual()[start + READ : start + READ + TOLD]
        yield Sample(
            name=str(number),
            question=" ".join(read[-ASKED:]),
            answers=(" ".join(passage),),
            context=" ".join(read[:-ASKED]),
            between=" ",
            plain=True,
        )
