"""LLaVA-Description: a thousand detailed descriptions out of LLaVA-1.5's training set.

Liu et al. (Elastic Cache), arXiv:2407.18121; PrefixKV, arXiv:2412.03409. detail_1k.json, linked
from https://github.com/THU-MIG/PrefixKV, and the images of COCO train2017 under coco/. The papers
measure perplexity of the description, and ROUGE-L to the full cache's answer; neither needs a
judge. The image stands before or behind the request, as the data has it. With a judge, it grades
the answer against the description, which the papers do not do.
"""

from __future__ import annotations

from collections.abc import Iterator

from foveate.data import Folder
from foveate.prompts.sample import PLACE, Sample
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.mm_vet import GRADE, PREFIXKV, graded
from foveate_lab.eval.benchmarks.source import Source
from foveate_lab.eval.benchmarks.sources import Sources

MARK = "<image>"
SOURCES = Sources(
    "LLaVA-Description",
    Source(
        contents="detail_1k.json and coco/train2017/ (or train2017/)",
        address="https://github.com/THU-MIG/PrefixKV",
        splits={"train": ("detail_1k.json",)},
        image_fields=("image",),
        image_places=("{}", "coco/train2017/{base}", "train2017/{base}"),
    ),
)


@Benchmark(
    "llava_description",
    SOURCES,
    judged=graded,
    longest=1024,
    reference=True,
    divisible=False,
    conversations=PREFIXKV,
)
def llava_description(folder: Folder) -> Iterator[Sample]:
    """Detailed descriptions of photographs, by perplexity and ROUGE-L to the full cache."""
    for record, images in SOURCES.rows(folder):
        question, answered = record.records("conversations", at_least=2)[:2]
        yield Sample(
            name=record.text_or_number("id"),
            question=_with_place(question.text("value")),
            answers=(answered.text("value"),),
            images=images,
            facts={"prompt": GRADE},
        )


def _with_place(text: str) -> str:
    """Return the request, with the image's place unless it comes first."""
    before, _, after = (part.strip() for part in text.partition(MARK))
    return f"{before}\n{PLACE}{after}" if before and MARK in text else before or after
