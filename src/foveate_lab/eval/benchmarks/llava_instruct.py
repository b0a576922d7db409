"""LLaVA-1.5's instruction tuning data: conversations about images, of many kinds and lengths.

Liu et al., arXiv:2310.03744. llava_v1_5_mix665k.json, from
https://huggingface.co/datasets/liuhaotian/LLaVA-Instruct-150K, and the images that it names. Not a
benchmark: profiles are measured on its prompts. A sample asks the last question of a conversation,
with the earlier rounds before it; conversations without an image are left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from foveate.data import Folder
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark
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
)
def llava_instruct(folder: Folder) -> Iterator[Sample]:
    """Conversations about images, by perplexity of the last answer."""
    for record, _ in SOURCES.rows(folder):
        if not record.has("image"):
            continue
        said = [
            one.text("value").replace(MARK, "").strip()
            for one in record.records("conversations", at_least=2)
        ]
        *earlier, question, answered = said[: len(said) // 2 * 2]
        yield Sample(
            name=record.text_or_number("id"),
            question=question,
            answers=(answered,),
            images=(folder.image(record, "image", "{}"),),
            context="\n".join(earlier),
            between="\n",
        )
