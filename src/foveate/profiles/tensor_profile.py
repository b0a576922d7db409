"""Profiles that hold tensors: what a method measured on a model, in a safetensors file.

The file's metadata is the heading that JSON profiles have, and every tensor is named after what it
is and the layer's place among those that are compressed: "filters.0".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from foveate.cache.layer import Layer
from foveate.data import files
from foveate.data.texts import check_file
from foveate.errors import InvalidInput
from foveate.ops.rotation import Rotation, no_rotation
from foveate.policies.gathering import GATHERINGS, TURNS, targets_of, turns_far_keys
from foveate.policies.parameters import shown
from foveate.profiles.heading import SCHEMA, Heading, load_as

FIELDS = ("schema", "method", "model", "layers", "samples", "budget")
LATER = ("weights", "target", "prompts", "longest")  # earlier files say nothing of these


def write_tensors(
    path: Path, by_layer: Sequence[Mapping[str, Tensor]], note: Mapping[str, str]
) -> None:
    """Write the tensors of every layer, as "name.layer", and a note."""
    tensors = {
        f"{name}.{layer}": tensor.cpu().clone(memory_format=torch.contiguous_format)
        for layer, named in enumerate(by_layer)
        for name, tensor in named.items()
    }
    files.write(path, save(tensors, dict(note)))


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the note and the tensors of a file."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return file.metadata() or {}, tensors


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorProfile(Heading):
    """The tensors of every compressed layer, by name; ``target`` is what they were fitted to, where
    their method has several, ``prompts`` a digest of the prompts, and ``longest`` the tokens of the
    longest, 0 where it is not known.
    """

    by_layer: Sequence[Mapping[str, Tensor]]
    target: str = ""
    prompts: str = ""
    longest: int = 0

    def save(self, path: str | Path) -> Path:
        """Writes the file.

        Raises:
            CannotWrite: and then a file that was there is what it was.
        """
        path = Path(path)
        note = {name: str(getattr(self, name)) for name in (*FIELDS, *LATER)}
        write_tensors(path, self.by_layer, note)
        _read.cache_clear()
        return path

    def of(self, layer: Layer, **shapes: tuple[int, ...]) -> list[Tensor]:
        """The tensors of a layer, which have to have these shapes, on its device.

        Raises:
            ProfileMismatch: it was made for other layers, heads or channels.
        """
        self.check_layers(layer.depth)
        tensor = self.by_layer[layer.ordinal]
        for name, expected in shapes.items():
            if tensor[name].shape != expected:
                raise self.mismatch(
                    f"of {self.model!r} has {name} of shape {tuple(tensor[name].shape)} for layer "
                    f"{layer.number}, whose heads and channels need {expected}"
                )
        return [tensor[name].to(layer.k.device) for name in shapes]

    def rotation(self, layer: Layer) -> Rotation:
        """How the layer turns keys by their positions, on its device; of no channels where it does
        not say.

        Raises:
            ProfileMismatch: it was made for other layers, or turns channels that keys do not have.
        """
        self.check_layers(layer.depth)
        held = self.by_layer[layer.ordinal]
        if not held.keys() >= set(TURNS):
            return no_rotation(layer.k.device)
        frequencies, pairs = (held[name] for name in TURNS)
        r, channels = len(frequencies), layer.k.shape[-1]
        if pairs.shape != (2, r) or bool(((pairs < 0) | (pairs >= channels)).any()):
            raise self.mismatch(
                f"of {self.model!r} turns other channels than the {channels} of the keys of layer "
                f"{layer.number}"
            )
        return Rotation(pairs[0], pairs[1], frequencies).to(layer.k.device)


def load_tensors(path: str, method: str) -> TensorProfile:
    """Reads a profile of tensors; a file that has not changed is read once.

    Raises:
        InvalidInput: no such file, a damaged one, or no profile of this version.
        ProfileMismatch: a profile of another method.
    """
    return load_as(path, method, _read)


def method_of(path: str) -> str:
    """Whose profile of tensors a file is.

    Raises:
        InvalidInput: a damaged one, or no profile of this version.
    """
    place = Path(path).absolute()
    return _read(place, place.stat().st_mtime_ns).method


@lru_cache(maxsize=8)
def _read(path: Path, stamp: int) -> TensorProfile:
    """``stamp`` is when the file was written last."""
    try:
        check_file(path)
        note, tensors = read_tensors(path)
    except (InvalidInput, SafetensorError, OSError, ValueError) as error:
        raise InvalidInput(
            f"{path} is not a profile of tensors: {str(error).rstrip('.')}."
        ) from error
    if note.get("schema") != SCHEMA:
        raise InvalidInput(
            f"{path} has the profile schema {shown(note.get('schema'))}, expected {SCHEMA!r}."
        )
    for name in (*FIELDS, "longest"):
        said = note.get(name, "0" if name in LATER else None)
        counts = name in ("layers", "samples", "longest")
        if said is None or (counts and not (said.isascii() and said.isdigit())):
            raise InvalidInput(f"{path} is not a profile of tensors: its {name} is {shown(said)}.")
    layers = int(note["layers"][:9])
    by_layer: list[dict[str, Tensor]] = [{} for _ in range(min(layers, len(tensors)))]
    for name, tensor in tensors.items():
        kind, _, number = name.rpartition(".")
        if not number.isdigit() or int(number[:9]) >= len(by_layer):
            raise InvalidInput(f"{path} says {layers} layers and holds the tensor {shown(name)}.")
        by_layer[int(number)][kind] = tensor
    profile = TensorProfile(
        method=note["method"],
        model=note["model"],
        layers=layers,
        samples=int(note["samples"][:9]),
        budget=note["budget"],
        weights=note.get("weights", ""),
        target=note.get("target", ""),
        prompts=note.get("prompts", ""),
        longest=int(note.get("longest", "0")[:9]),
        by_layer=by_layer,
    )
    if profile.method in GATHERINGS:
        _check_tensors(path, profile)
    return profile


def _check_tensors(path: Path, profile: TensorProfile) -> None:
    """Raises InvalidInput unless it holds what its method measures, in finite numbers."""
    gathering = GATHERINGS[profile.method]
    names, targets = set(gathering.names), targets_of(gathering)
    may_have = TURNS if turns_far_keys(gathering) else ()
    if targets and profile.target not in targets:
        raise InvalidInput(
            f"{path} is a profile of {profile.method} whose target is {shown(profile.target)}: it "
            f"is of another version, and this one knows {', '.join(targets)}."
        )
    if len(profile.by_layer) != profile.layers or not profile.layers:
        raise InvalidInput(
            f"{path} says {profile.layers} layers and holds tensors of {len(profile.by_layer)}."
        )
    for layer, held in enumerate(profile.by_layer):
        if not names <= set(held) <= names.union(may_have):
            raise InvalidInput(
                f"{path} is not a profile of {profile.method}: layer {layer} has the tensors "
                f"{sorted(held)} instead of {sorted(names)}."
            )
        for name, tensor in held.items():
            if not bool(tensor.isfinite().all()):
                raise InvalidInput(f"{path} holds numbers in {name}.{layer} that are not finite.")
