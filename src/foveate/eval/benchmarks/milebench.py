"""MileBench: 29 sets with many images or long contexts, in 12 tasks.

Song et al., arXiv:2404.18532. From https://github.com/MileBench/MileBench; a set is a folder that
holds a JSON file of its own name and images/. Prompts are the authors'. They cut a context that is
too long from its beginning; nothing is cut here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from foveate.core.errors import InvalidInput
from foveate.eval.benchmarks.folder import alternating, benchmark, picture, records
from foveate.eval.metrics import milebench as score
from foveate.eval.sample import PLACE, Metric, Sample

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
UNLETTERED = "GPR1200"  # has more choices than there are letters
METRICS: dict[str, Metric] = {
    "multi-choice": score.choice,
    "open-ended": score.described,
    "needle": score.needle,
    "within": score.within,
}


def scored(prediction: str, sample: Sample) -> float | None:
    """By the metric of the sample's set."""
    return METRICS[sample.facts["kind"]](prediction, sample)


def read(sets: tuple[str, ...], folder: Path) -> Iterator[Sample]:
    """The samples of several sets, one of each in turn, so that the first ones are of all sets."""
    return alternating(*(_set(folder / name, name) for name in sets))


def _set(folder: Path, name: str) -> Iterator[Sample]:
    content = records(folder, f"{name}.json")
    kind = _kind(name, content["meta_data"]["question_type"])
    for record in content["data"]:
        asked = record["task_instance"]
        context, between, question = _prompt(content["meta_data"], record, name)
        yield Sample(
            name=f"{name}/{record['sample_id']}",
            question=question,
            answers=(str(record["response"]),),
            images=tuple(picture(folder, f"images/{path}") for path in asked["images_path"]),
            context=context,
            facts={"kind": kind, "choices": tuple(map(str, asked.get("choice_list") or ()))},
            between=between,
        )


def _kind(name: str, question_type: str) -> str:
    if "NeedleInAHaystack" in name:
        return "needle"
    if "MMCoQA" in name:
        return "within"
    if question_type not in METRICS:
        raise InvalidInput(f"{name}: the question type {question_type!r} is not MileBench's.")
    return question_type


def _prompt(meta: Mapping[str, Any], record: Mapping[str, Any], name: str) -> tuple[str, str, str]:
    """What comes up to the last image, what joins, and what comes after it."""
    asked = record["task_instance"]
    text = f"{meta['task_instruction'][record['task_instruction_id']]}\n{asked['context']}"
    if "choice_list" in asked:
        lines = [
            f"{choice}" if name == UNLETTERED else f"{chr(ord('A') + i)}. {choice}"
            for i, choice in enumerate(asked["choice_list"])
        ]
        text += "\nChoice list: \n" + "\n".join(lines) + "\nYour answer is: "
    for number in range(1, len(asked["images_path"]) + 1):
        for what in ("image", "table"):
            text = text.replace(f"{{{what}#{number}}}", PLACE)
    before, place, after = text.rpartition(PLACE)
    return before, place, after


def _register(short: str, sets: tuple[str, ...]) -> None:
    reader: Callable[[Path], Iterator[Sample]] = partial(read, sets)
    benchmark(
        f"milebench_{short.replace('-', '').lower()}",
        holds=f"SET/SET.json and SET/images/, SET being {' and '.join(sets)}",
        metric=scored,
        longest=512 if short in ("S-3", "S-4") else 64,
        divisible=False,
        summary=f"MileBench {short}: {', '.join(sets)}.",
    )(reader)


for _short, _sets in TASKS.items():
    _register(_short, _sets)
