"""Presets: evaluations under a name, with their tasks, policies and number of samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from foveate.cli.policies import by_default
from foveate.errors import InvalidInput
from foveate.loading.model import is_shipped
from foveate_lab.defaults import PresetName


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One kind of question in a preset.

    Attributes:
        benchmark: benchmark with its options, without a folder.
        folder: subfolder of the data that it is read from.
        download: shell command that fills the folder ``{at}``.
        drawn: generated task for models that ship with Foveate.
    """

    benchmark: str
    folder: str
    download: str
    drawn: str


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Tasks, number of samples of each, and methods beside those that ``foveate eval`` compares."""

    slots: tuple[Slot, ...]
    samples: int
    beside: tuple[str, ...]


_HUB = "hf download {} --repo-type dataset --local-dir {{at}}"
_PROMPTS = "https://raw.githubusercontent.com/THUDM/LongBench/main/LongBench/config"
PRESETS: Mapping[PresetName, Preset] = {
    "first-hour": Preset(
        slots=(
            Slot(
                benchmark="docvqa",
                folder="docvqa",
                download=_HUB.format("lmms-lab/DocVQA --include 'DocVQA/validation*'"),
                drawn="document",
            ),
            Slot(
                benchmark="chartqa",
                folder="chartqa",
                download=_HUB.format("lmms-lab/ChartQA"),
                drawn="chart",
            ),
            Slot(
                benchmark="milebench_s2(set=SlideVQA)",
                folder="milebench",
                download=_HUB.format("FreedomIntelligence/MileBench")
                + ' && for f in {at}/*.tar.gz; do tar xzf "$f" -C {at}; done',
                drawn="three_people",
            ),
            Slot(
                benchmark="longbench_qasper",
                folder="longbench",
                download=_HUB.format("THUDM/LongBench data.zip")
                + " && unzip -q {at}/data.zip -d {at}"
                + f" && curl -fLo {{at}}/dataset2prompt.json {_PROMPTS}/dataset2prompt.json",
                drawn="text_needle",
            ),
        ),
        samples=200,
        beside=("random",),
    )
}


def tasks_of(preset: Preset, model: str, data: Path | None) -> str:
    """Return a preset's tasks: benchmarks in the subfolders of ``data`` ("data" if None), or
    generated tasks for a model that ships with Foveate, unless ``data`` is set.

    Raises:
        InvalidInput: a benchmark's folder is missing; the message has the commands that fill it.
    """
    drawn = ",".join(slot.drawn for slot in preset.slots)
    if data is None and is_shipped(model):
        return drawn
    root = data or Path("data")
    if missing := [slot for slot in preset.slots if not (root / slot.folder).is_dir()]:
        commands = [f"  {slot.download.format(at=root / slot.folder)}" for slot in missing]
        raise InvalidInput(
            f"{len(missing)} of {len(preset.slots)} benchmarks are missing in {str(root)!r} "
            "(--data names another folder). To download them:\n" + "\n".join(commands) + "\nTo "
            f"use generated pages instead, add --tasks {drawn}."
        )
    return ",".join(f"{slot.benchmark}={root / slot.folder}" for slot in preset.slots)


def methods_of(preset: Preset, model: str) -> str:
    """Return a preset's methods for a model."""
    return ",".join((*preset.beside, *by_default(model)))
