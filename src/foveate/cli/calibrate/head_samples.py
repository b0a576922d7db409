"""Questions about drawn pages that say what where, for profiles that are scores of heads."""

from __future__ import annotations

from collections.abc import Iterator

from foveate.errors import InvalidInput
from foveate.loading.demo import demo
from foveate.loading.model import Loaded
from foveate.policies.heads import Shown
from foveate.prompts.evidence import tokens_of
from foveate.prompts.prompt import read
from foveate.prompts.sample import Sample, Span


def generated(method: str, samples: int) -> Iterator[Sample]:
    """Draw questions about forms, receipts, tables and signs: for HeadKV with the line that holds
    the answer, for others with all lines.
    """
    for seed in range(samples):
        question, page, lines = demo("calibration").page_with_lines(seed, method == "headkv")
        spans = tuple(Span(text, 0, box) for text, box in lines)
        yield Sample(str(seed), question.question, (question.answer,), (page,), evidence=spans)


def shown(loaded: Loaded, sample: Sample) -> Shown:
    """The model's inputs, and the tokens that each text stands on.

    Raises:
        InvalidInput: a text that the prompt does not hold, images whose tokens are not known, or
            texts of which the model's processor leaves none.
    """
    prompt = read(loaded, sample.text, list(sample.images))
    where = tokens_of(loaded, prompt, sample.images, sample.evidence)
    spans = [(span.text, at) for span, at in zip(sample.evidence, where, strict=True) if at]
    if not spans:
        raise InvalidInput(
            f"sample {sample.name}: the processor of {loaded.name} cuts "
            f"{[span.text for span in sample.evidence]} off the image, so no head can look at it. "
            "Give images of another shape."
        )
    return Shown(prompt.inputs, spans, *sample.answers)
