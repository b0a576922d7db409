"""MM-Vet: questions that need several abilities at once; a language model grades the answers.

Yu et al., arXiv:2308.02490. From https://github.com/yuweihao/MM-Vet (mm-vet.zip). PrefixKV measures
perplexity of the answers, and ROUGE-L to the full cache's, which need no judge.

The judge is asked for a number from 0 to 1. The authors' prompt with its examples is not part of
this package: put it into the folder as judge.txt and it is used, with the line that they put after
it. Scores with another prompt, or another judge than theirs, are not those of published tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from foveate.data import Folder, read_text
from foveate.errors import InvalidInput
from foveate.eval.benchmarks.folder import benchmark
from foveate.eval.judge import Judge, said_by
from foveate.eval.sample import Sample

GRADE = """\
Grade how correct a prediction is, from 0.0 (nothing is right) to 1.0 (all is right), in steps of
0.1. Where the ground truth has <AND>, the prediction needs every part; where it has <OR>, one part
is enough. Reply with the number alone.

Question | Ground truth | Prediction | Correctness
--- | --- | --- | ---"""


def graded(judge: Judge, prediction: str, sample: Sample) -> float:
    """What the judge says, 0 to 1.

    Raises:
        InvalidInput: it says anything else.
    """
    truth = sample.answers[0].replace("<AND>", " <AND> ").replace("<OR>", " <OR> ")
    row = " | ".join([sample.question, truth, prediction, ""])
    reply = said_by(judge, f"{sample.facts['prompt']}\n{row}")
    number = re.match(r"[01](?:\.\d+)?(?![\d.]*\d)", reply)
    if not number or float(number[0]) > 1:
        raise InvalidInput(
            f"the judge was asked for a number from 0 to 1 and said {reply!r} of {sample.name}."
        )
    return float(number[0])


@benchmark(
    "mm_vet",
    holds="mm-vet.json and images/",
    judged=graded,
    longest=512,
    reference=True,
    divisible=False,
)
def mm_vet(folder: Folder) -> Iterator[Sample]:
    """Questions that need several abilities at once; graded by a judge."""
    own = folder.find("judge.txt")
    prompt = read_text(own[0]) if own else GRADE
    for name, record in folder.record("mm-vet.json").items():
        yield Sample(
            name=name,
            question=record.text("question"),
            answers=(record.text_or_number("answer"),),
            images=(folder.image(record, "imagename", "images/{}"),),
            facts={"prompt": prompt, "capability": record.texts("capability")},
        )
