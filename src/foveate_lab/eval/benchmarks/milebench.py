"""MileBench: 29 sets with many images or long contexts, in 12 tasks.

Song et al., arXiv:2404.18532. From https://github.com/MileBench/MileBench; a set is a folder that
holds a JSON file of its own name and images/. Prompts, their cut, the length of answers and scores
are the authors': see :mod:`foveate_lab.eval.benchmarks.milebench_prompt`. LLaVA-1.5 is asked in the
conversation of their worker. Departures: an answer may be empty, which the authors rule out; and a
task's score here is the mean over samples, over sets in a report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from PIL import Image

from foveate.data import Folder, Record, read_record
from foveate.errors import InvalidInput
from foveate.policies.parameters import Positive
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.folder import Benchmark, alternating
from foveate_lab.eval.benchmarks.joined import joined
from foveate_lab.eval.benchmarks.milebench_prompt import Cut, fitted, parts, read_context
from foveate_lab.eval.benchmarks.source import Source
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.metrics import milebench as score
from foveate_lab.eval.task_registry import Metric

TASKS = {
    "T-1": ("ActionLocalization", "ActionPrediction", "ActionSequence"),
    "T-2": ("ObjectExistence", "ObjectInteraction", "MovingAttribute", "ObjectShuffle"),
    "T-3": ("EgocentricNavigation", "MovingDirection"),
    "T-4": ("CounterfactualInference", "StateChange", "CharacterOrder", "SceneTransition"),
    "S-1": ("WebQA", "TQA", "MultiModalQA", "WikiVQA"),
    "S-2": ("SlideVQA", "OCR-VQA", "DocVQA"),
    "S-3": ("Spot-the-Diff", "CLEVR-Change", "IEdit"),
    "S-4": ("MMCoQA", "ALFRED"),
    "S-5": ("nuscenes",),
    "N-1": ("TextNeedleInAHaystack",),
    "N-2": ("ImageNeedleInAHaystack",),
    "I-1": ("GPR1200",),
}
LONGEST = 512  # tokens of an answer, whatever the task
CONVERSATIONS = {"llava-1.5": "llava_llama_2", "internvl-chat-v1.5": "internlm2-chat"}
"""Conversations of workers/model_workers.py: LLaVA's is MileBench's own, and both are LOOK-M's and
CSP's. LLaVA-1.5 was not trained on Llama 2's.
"""
METRICS: dict[str, Metric] = {
    "multi-choice": score.choice,
    "open-ended": score.described,
    "needle": score.needle,
    "within": score.within,
}


def scored(prediction: str, sample: Sample) -> float | None:
    """Return the score by the metric of the sample's set."""
    return METRICS[sample.facts["kind"]](prediction, sample)


def read(sets: Sequence[str], folder: Folder, cut: Cut, combined: bool) -> Iterator[Sample]:
    """Yield the samples of several sets, one of each in turn, so that the first are of all sets.

    Prompts are cut as ``cut`` says. ``combined``: all images of a sample are joined to one.
    """
    return alternating(*(_set(folder, name, cut, combined) for name in sets))


def _set(folder: Folder, name: str, cut: Cut, combined: bool) -> Iterator[Sample]:
    (path,) = sources_of((name,), combined)[name].chosen(folder).paths
    content, folder = read_record(path), folder.within(str(path.parent.relative_to(folder.path)))
    meta = content.record("meta_data")
    kind = _kind(name, meta.text("question_type"))
    for record in content.records("data"):
        instance = record.record("task_instance")
        choices = instance.texts_or_numbers("choice_list") if instance.has("choice_list") else ()
        instruction, context = read_context(meta, record, choices, name, combined)
        yield Sample(
            name=f"{name}/{record.text_or_number('sample_id')}",
            answers=(record.text_or_number("response"),),
            images=_images(folder, instance, combined),
            facts={
                "kind": kind,
                "choices": choices,
                "instruction": instruction,
                "context": context,
                "cut": cut,
                "combined": combined,
            },
            labels={
                "set": name,
                "kind": kind,
                "images": len(instance.texts("images_path")),
                **_level(record),
            },
            **parts(instruction, context, combined),
        )


def sources_of(sets: Sequence[str], combined: bool = False) -> Mapping[str, Sources]:
    """Return each set's file; if ``combined``, the authors' one of joined images, where there."""
    return {name: Sources(f"MileBench {name}", _source(name, combined)) for name in sets}


def _source(name: str, combined: bool) -> Source:
    joined = {"joined images": (f"{name}_combined_1.json",)} if combined else {}
    return Source(
        contents=f"{name}/{name}.json and {name}/images/ (there, or in MileBench/)",
        address="https://huggingface.co/datasets/FreedomIntelligence/MileBench",
        splits={**joined, "test": (f"{name}.json",)},
        folders=(f"{name}/", f"MileBench/{name}/"),
        records_field="data",
    )


def _level(record: Record) -> dict[str, str]:
    """Return the class of its number of images, which some sets lack."""
    there = record.has("image_quantity_level")
    return {"level": record.text("image_quantity_level")} if there else {}


def _images(folder: Folder, instance: Record, combined: bool) -> tuple[Image.Image, ...]:
    if not combined:
        return folder.images(instance, "images_path", "images/{}")
    if instance.has("combined_1_images"):
        return folder.images(instance, "combined_1_images", "combined_1_images/{}")
    return (joined(folder.images(instance, "images_path", "images/{}")),)


def _kind(name: str, question_type: str) -> str:
    if "NeedleInAHaystack" in name:
        return "needle"
    if "MMCoQA" in name:
        return "within"
    if question_type not in METRICS:
        raise InvalidInput(f"{name}: the question type {question_type!r} is not MileBench's.")
    return question_type


def _register(short: str, sets: tuple[str, ...]) -> None:
    def reader(
        folder: Folder,
        *,
        set: str | None = None,
        longest_prompt: Positive | None = 4096,
        image_tokens: Positive = 576,
        combined: bool = False,
    ) -> Iterator[Sample]:
        cut = Cut(longest_prompt, image_tokens)
        return read((set,) if set else sets, folder, cut, combined)

    reader.__annotations__["set"] = Literal[sets] | None
    Benchmark(
        f"milebench_{short.replace('-', '').lower()}",
        data="milebench",
        contents=f"SET/SET.json and SET/images/ (there, or in MileBench/), SET being "
        f"{' and '.join(sets)}",
        sources=lambda set=None, combined=False, **own: sources_of(
            (set,) if set else sets, combined
        ),
        metric=scored,
        longest=LONGEST,
        divisible=False,
        fit=fitted,
        conversations=CONVERSATIONS,
        summary=f"MileBench {short}: {', '.join(sets)}.",
    )(reader)


for _short, _sets in TASKS.items():
    _register(_short, _sets)
