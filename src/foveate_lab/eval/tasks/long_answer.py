"""A text that goes on: an answer so long that what it adds to the cache matters more than what the
prompt left there. The text is real, out of Python's manual.

Every cache is told how the text goes on, token by token where a policy compresses while decoding
(``when=over_budget``, ``fixed_slot``): that likelihood is the measure (``reference_nll``, and from
it the perplexity), since what small models write themselves at such length repeats itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from foveate.prompts.manual import manual
from foveate.prompts.sample import Sample
from foveate_lab.eval.metrics import rouge_l
from foveate_lab.eval.task_registry import task

READ, ASKED, TOLD, LONGEST = 300, 40, 400, 640  # words before, of them the last, words told; tokens


@task("long_answer", metric=rouge_l, longest=LONGEST, reference=True, divisible=False)
def long_answer(count: int, seed: int) -> Iterator[Sample]:
    """The next 400 words of Python's manual, after 300 of them; by perplexity and ROUGE-L."""
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
