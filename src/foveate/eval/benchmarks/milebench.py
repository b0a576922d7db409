"""MileBench: 29 sets with many images or long contexts, in 12 tasks.

Song et al., arXiv:2404.18532. From https://github.com/MileBench/MileBench; a set is a folder that
holds a JSON file of its own name and images/. Prompts are the authors'. They cut a context that is
too long from its beginning; nothing is cut here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from foveate.data import Folder, Record
from foveate.errors import InvalidInput
from foveate.eval.benchmarks.folder import alternating, benchmark
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


def read(sets: tuple[str, ...], folder: Folder) -> Iterator[Sample]:
    """The samples of several sets, one of each in turn, so that the first ones are of all sets."""
    return alternating(*(_set(folder.within(name), name) for name in sets))


def _set(folder: Folder, name: str) -> Iterator[Sample]:
    content = folder.record(f"{name}.json")
    meta = content.record("meta_data")
    kind = _kind(name, meta.text("question_type"))
    for record in content.records("data"):
        asked = record.record("task_instance")
        choices = asked.texts_or_numbers("choice_list") if asked.has("choice_list") else ()
        context, between, question = _prompt(meta, record, choices, name)
        yield Sample(
            name=f"{name}/{record.text_or_number('sample_id')}",
            question=question,
            answers=(record.text_or_number("response"),),
            images=folder.images(asked, "images_path", "images/{}"),
            context=context,
            facts={"kind": kind, "choices": choices},
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


def _prompt(
    meta: Record, record: Record, choices: Sequence[str], name: str
) -> tuple[str, str, str]:
    """What comes up to the last image, what joins, and what comes after it."""
    asked, instructions = record.record("task_instance"), meta.texts("task_instruction")
    number = record.index("task_instruction_id", len(instructions))
    text = f"{instructions[number]}\n{asked.text('context')}"
    if choices:
        lines = [
            choice if name == UNLETTERED else f"{chr(ord('A') + i)}. {choice}"
            for i, choice in enumerate(choices)
        ]
        text += "\nChoice list: \n" + "\n".join(lines) + "\nYour answer is: "
    for number in range(1, len(asked.texts("images_path")) + 1):
        for what in ("image", "table"):
            text = text.replace(f"{{{what}#{number}}}", PLACE)
    before, place, after = text.rpartition(PLACE)
    return before, place, after


def _register(short: str, sets: tuple[str, ...]) -> None:
    reader: Callable[[Folder], Iterator[Sample]] = partial(read, sets)
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
