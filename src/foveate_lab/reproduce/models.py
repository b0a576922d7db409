"""The models of the papers, under the names that tables give them; where one is loaded from, and
how it reads images.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from foveate.defaults import SEES, DeviceMap
from foveate.errors import InvalidInput, InvalidParameter, suggest
from foveate.loading.model import Loaded, is_shipped
from foveate_lab.eval.benchmarks import BENCHMARKS
from foveate_lab.eval.conversations import conversation_of
from foveate_lab.eval.padding import load
from foveate_lab.eval.pixels import AS_THEY_ARE, Pixels
from foveate_lab.eval.tasks import find_conversations
from foveate_lab.reproduce.resources import toml

END = 2**20  # bytes at either end of a file of weights that its digest is of
WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True, kw_only=True)
class Model:
    """``hub`` is the checkpoint that is loaded where no other place is named; ``open`` what the
    papers leave open about it, with what is taken here. Where every paper that has it reads images
    otherwise than the hub's processor: ``pad_images`` pads them to squares instead of cropping,
    ``min_pixels`` and ``max_tiles`` bound what is made of one.

    ``family`` is one of :data:`foveate_lab.eval.conversations.FAMILIES`. ``conversations`` are by
    task those of a paper's own harness, where it asks otherwise than the benchmark's authors.
    ``template`` says how a model without a family is asked. ``options`` of benchmarks, by what
    their names begin with, hold for this model alone.
    """

    hub: str
    convert: bool = False  # its files have to be converted first
    pad_images: bool = False
    min_pixels: int | None = None
    max_tiles: int | None = None
    open: str = ""
    family: str = ""
    conversations: Mapping[str, str] = field(default_factory=dict)
    template: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def pixels(self) -> Pixels:
        """The bounds of an image, where a benchmark has none of its own. Another model may stand in
        its place, which bounds nothing.
        """
        if self.min_pixels or self.max_tiles:
            return Pixels(minimum=self.min_pixels, tiles=self.max_tiles, optional=True)
        return AS_THEY_ARE

    def conversations_of(self, task: str, benchmark: Mapping[str, str]) -> Mapping[str, str]:
        """Return a benchmark's conversations by family, with the paper's own for this model."""
        own = self.conversations.get(task)
        return {**benchmark, self.family: own} if own else benchmark

    def with_options(self, task: str) -> str:
        """Return a benchmark's name with the options that hold for this model."""
        own = [text for kind, text in self.options.items() if task.startswith(kind)]
        if not own:
            return task
        kind, _, arguments = task.removesuffix(")").partition("(")
        return f"{kind}({','.join([arguments, *own] if arguments else own)})"


ORIGINS = {
    "": "of the converted model",
    "vicuna_v1": "of LLaVA's code, with its system prompt",
    "llava_v1": "of PrefixKV's code, with its system prompt and the image where it puts it",
    "llava_llama_2": "of MileBench's, LOOK-M's and CSP's workers, with images within the text",
    "vlmevalkit": "of VLMEvalKit's worker for LLaVA",
    "internlm2-chat": "of LOOK-M's and CSP's workers, with images within the text",
    "internvl2_5": "of the authors' chat(), with its system prompt",
}
"""Whose code has a conversation."""

MODELS = {name: Model(**entry) for name, entry in toml("models").items()}


def stand_ins(names: Sequence[str]) -> dict[str, str]:
    """Return the small model that comes with Foveate for each name; it reads texts alone, too."""
    return dict.fromkeys(names, SEES)


def sources_of(names: Sequence[str], overrides: Sequence[str]) -> dict[str, str]:
    """Return where each model of an experiment is: on the hub, or where NAME=PLACE says.

    A place without a name is that of the only model, or of the one whose name on the hub it ends
    with. Names of models that other experiments have are ignored.

    Raises:
        InvalidInput: a name that is no paper's model, a place that fits several models, or none
            for this experiment.
    """
    if not overrides:
        return {name: MODELS[name].hub for name in names}
    chosen = dict(_named(text, names) for text in overrides)
    paths = {name: chosen[name] for name in names if name in chosen}
    if not paths:
        raise InvalidInput(
            f"none of its models is given: it has {', '.join(names)}. Add --model {names[0]}=PLACE."
        )
    return paths


def image_note(name: str) -> str:
    """Say where a model's images are not read as by the hub's processor alone; else ""."""
    model = MODELS[name]
    if model.pad_images:
        return (
            f"images of {name} are padded to squares in the mean colour, as the authors' code "
            "does; the hub's processor alone would crop them"
        )
    if model.min_pixels:
        return (
            f"images of {name} have at least {model.min_pixels:,} pixels, as in the authors' code; "
            "the hub's processor alone would leave smaller ones, of 3,136 pixels and more"
        )
    if model.max_tiles:
        return (
            f"images of {name} are cut into at most {model.max_tiles} tiles, as in the authors' "
            "code; the hub's processor alone would cut them into up to 12"
        )
    return ""


def prompt_notes(name: str, tasks: Sequence[str]) -> list[str]:
    """Return how a model is asked these benchmarks, a sentence for each conversation; none where
    nothing is known of its template.
    """
    model = MODELS[name]
    if not model.family:
        return [f"{name} is asked {model.template}"] if tasks and model.template else []
    benchmarks: dict[str, list[str]] = {}
    for task in tasks:
        conversations = model.conversations_of(task, find_conversations(task))
        kind = BENCHMARKS[task.partition("(")[0]].data  # one name for all tasks of MileBench
        kinds = benchmarks.setdefault(conversation_of(model.family, conversations), [])
        if kind not in kinds:
            kinds.append(kind)
    return [
        f"{name} is asked {', '.join(kinds)} in the conversation {conversation}, "
        f"{ORIGINS[conversation]}"
        for conversation, kinds in benchmarks.items()
    ]


def _named(override: str, names: Sequence[str]) -> tuple[str, str]:
    name, equals, source = override.partition("=")
    if equals and name in MODELS:
        return name, source
    if equals:
        raise InvalidInput(f"--model {override!r}: no paper has {name!r}. {suggest(name, MODELS)}")
    if len(names) == 1:
        return names[0], override
    tail = override.rstrip("/").rpartition("/")[2].lower()
    same = [name for name in names if MODELS[name].hub.rpartition("/")[2].lower() == tail]
    if len(same) != 1:
        raise InvalidInput(
            f"--model {override!r} may be any of {', '.join(names)}: write NAME=PLACE, such as "
            f"{names[0]}={override}."
        )
    return same[0], override


def where_found(names: Mapping[str, str] | Sequence[str]) -> list[str]:
    """Return a line for each model that a user has to bring."""
    return [
        f"{name}: {MODELS[name].hub}"
        + (", converted with foveate convert" if MODELS[name].convert else "")
        for name in names
    ]


class Place(NamedTuple):
    """Location of a model, and whether its images are padded: rows and profiles belong to both."""

    at: str
    pad_images: bool

    @property
    def folder(self) -> str:
        """Name of its folders of rows and profiles."""
        return slug(self.at) + ("-padded" if self.pad_images else "")

    @property
    def weights(self) -> str | None:
        """Digest of a directory's configuration, and of the sizes and both ends of its files of
        weights: equal for a copy of it, wherever that is. None for the name of a model.
        """
        folder = Path(self.at).expanduser()
        return _digest(folder) if folder.is_dir() and not is_shipped(self.at) else None

    def load(self, trust_remote_code: bool, device_map: DeviceMap | None) -> Loaded:
        """Load the model.

        Raises:
            InvalidInput: its images have to be padded, and it is no LLaVA-1.5.
        """
        try:
            return load(self.at, trust_remote_code, device_map, pad_images=self.pad_images)
        except InvalidParameter as error:
            if not self.pad_images:
                raise
            raise InvalidInput(
                f"{self.at!r} stands for LLaVA-1.5, whose images the papers pad to squares, and "
                "those of its processor cannot be. Give a LLaVA-1.5, as the hub has it or as "
                "foveate convert makes it."
            ) from error


def slug(location: str) -> str:
    """Return a location as the name of a folder."""
    name = re.sub(r"[^\w.-]+", "_", location.rstrip("/").rpartition("/")[2]).strip("._")
    if not name:
        raise InvalidInput(f"{location!r} is no place of a model.")
    return name


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.name == "config.json" or path.suffix in WEIGHTS:
            size = path.stat().st_size
            digest.update(f"{path.name} {size} ".encode())
            with path.open("rb") as file:
                digest.update(file.read(END))
                file.seek(-min(END, size), os.SEEK_END)
                digest.update(file.read(END))
    return digest.hexdigest()[:16]
