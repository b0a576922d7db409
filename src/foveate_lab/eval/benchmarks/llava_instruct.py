"""LLaVA-1.5's instruction tuning data: conversations about images, of many kinds and lengths.

Liu et al., arXiv:2310.03744. llava_v1_5_mix665k.json, from
https://huggingface.co/datasets/liuhaotian/LLaVA-Instruct-150K, and the images that it names. Not a
benchmark: profiles are measured on its prompts. A sample asks the last question of a conversation,
with the earlier rounds before it; conversations without an image are left out. The file is sorted
by source, so its first samples are alike: ``seed`` draws them from all of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from foveate.data import Folder, Record
from foveate.policies.parameters import Count, Positive, Seed
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.mm_vet import PREFIXKV
from foveate_lab.eval.benchmarks.source import Source
from foveate_lab.eval.benchmarks.sources import Sources

MARK = "<image>"


SOURCES = Sources(
    "LLaVA-Instruct",
    Source(
        contents="llava_v1_5_mix665k.json and the images that it names (coco/, gqa/, ocr_vqa/, "
        "textvqa/, vg/)",
        address="https://huggingface.co/datasets/liuhaotian/LLaVA-Instruct-150K",
        splits={"train": ("llava_v1_5_mix665k.json",)},
    ),
)


@Benchmark(
    "llava_instruct",
    SOURCES,
    longest=1024,
    reference=True,
    divisible=False,
    conversations=PREFIXKV,
)
def llava_instruct(
    folder: Folder,
    *,
    seed: Seed | None = None,
    min_words: Count = 0,
    max_words: Positive | None = None,
) -> Iterator[Sample]:
    """Conversations about images, by perplexity of the last answer."""
    records = [record for record, _ in SOURCES.rows(folder) if record.has("image")]
    if seed is not None:
        Random(seed).shuffle(records)
    for record in records:
        *earlier, question, answer = _turns(record)
        words = sum(len(text.split()) for text in (*earlier, question))
        if min_words <= words and (max_words is None or words <= max_words):
            yield Sample(
                name=record.text_or_number("id"),
                question=question,
                answers=(answer,),
                images=(folder.image(record, "image", "{}"),),
                context="\n".join(earlier),
                between="\n",
            )


def _turns(record: Record) -> list[str]:
    """Return the texts of the complete rounds, without the marks of images."""
    texts = [
        turn.text("value").replace(MARK, "").strip()
        for turn in record.records("conversations", at_least=2)
    ]
    return texts[: len(texts) // 2 * 2]
