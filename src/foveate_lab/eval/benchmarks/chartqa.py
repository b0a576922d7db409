"""ChartQA: questions about charts, some asked by people, some generated.

Masry et al., arXiv:2203.10244. From https://github.com/vis-nlp/ChartQA, from lmms-lab/ChartQA,
ahmed-masry/ChartQA or HuggingFaceM4/ChartQA on the hub, or as VLMEvalKit's ChartQA_TEST.tsv.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from foveate.data import Folder, Record
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import Images, Source, in_kit, on_hub
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.metrics import relaxed

ASK = "\nAnswer the question with a single word."
PARTS = ("human", "augmented")
ARCHIVE = "ChartQA Dataset/test/"  # where the authors' archive has the split that is asked


def _part(record: Record, images: Images) -> Record:
    """Add who asked; one repository has it as 0 or 1, the other as a word."""
    return record.also(type=PARTS[record.index("human_or_machine", 2)])


SOURCES = Sources(
    "ChartQA",
    Source(
        contents="test_human.json, test_augmented.json and png/ (or the archive's test/ or "
        "ChartQA Dataset/test/ with them)",
        address="https://github.com/vis-nlp/ChartQA",
        splits={
            split: tuple(f"{split}_{part}.json" for part in PARTS)
            for split in ("test", "val", "train")
        },
        folders=("", "test/", ARCHIVE),
        path_fields=lambda path: {"type": path.stem.rpartition("_")[2]},
        image_fields=("imgname",),
        image_places=("png/{}", "{}", "test/png/{}", f"{ARCHIVE}png/{{}}"),
    ),
    on_hub("lmms-lab/ChartQA", "test", "type", "question", "answer"),
    on_hub("ahmed-masry/ChartQA", "test", "type", "query", "label"),
    on_hub("HuggingFaceM4/ChartQA", "test", "human_or_machine", "query", "label", prepare=_part),
    in_kit(
        "ChartQA_TEST.tsv",
        "test",
        {"question": "question", "answer": "answer", "split": "type"},
    ),
)


@Benchmark("chartqa", SOURCES, metric=relaxed, longest=16)
def chartqa(folder: Folder) -> Iterator[Sample]:
    """Questions about charts, by relaxed accuracy; what people asked comes first."""
    numbers = Counter[str]()
    for record, images in SOURCES.rows(folder):
        part = record.text("type").removesuffix("_test").removeprefix("test_")
        (answer,) = record.one_or_more("answer", "label")
        yield Sample(
            name=f"{part}/{numbers[part]}",
            question=f"{record.text('question', 'query')}{ASK}",
            answers=(answer,),
            images=images,
            labels={"part": part},
        )
        numbers[part] += 1
