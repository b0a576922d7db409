"""Profiles of tensors: measurements of a method on a model, in a safetensors file.

The file's metadata is the same heading as in JSON profiles. A tensor's name is its kind and its
layer's index among the compressed ones: "filters.0".
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
from foveate.policies.parameters import short_repr
from foveate.profiles.heading import SCHEMA, Heading, load_as

FIELDS = ("schema", "method", "model", "layers", "samples", "budget")
LATER = ("weights", "target", "prompts", "longest")  # not in earlier files


def write_tensors(
    path: Path, by_layer: Sequence[Mapping[str, Tensor]], note: Mapping[str, str]
) -> None:
    """Write the tensors of every layer, as "name.layer", and metadata."""
    tensors = {
        f"{name}.{layer}": tensor.cpu().clone(memory_format=torch.contiguous_format)
        for layer, named in enumerate(by_layer)
        for name, tensor in named.items()
    }
    files.write(path, save(tensors, dict(note)))


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and the tensors of a file."""
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return file.metadata() or {}, tensors


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorProfile(Heading):
    """Tensors of every compressed layer, by name.

    ``target`` is what they were fitted to, if their method has several targets. ``prompts`` is a
    digest of the prompts. ``longest`` are the tokens of the longest prompt, 0 if unknown.
    """

    by_layer: Sequence[Mapping[str, Tensor]]
    target: str = ""
    prompts: str = ""
    longest: int = 0

    def save(self, path: str | Path) -> Path:
        """Write the file.

        Raises:
            CannotWrite: an existing file is unchanged then.
        """
        path = Path(path)
        note = {name: str(getattr(self, name)) for name in (*FIELDS, *LATER)}
        write_tensors(path, self.by_layer, note)
        _read.cache_clear()
        return path

    def of(self, layer: Layer, **shapes: tuple[int, ...]) -> list[Tensor]:
        """Return the tensors of a layer, on its device, after checking their shapes.

        Raises:
            ProfileMismatch: it was measured with other layers, heads or channels.
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
        """Return the layer's rotation of keys, on its device; of no channels if none is stored.

        Raises:
            ProfileMismatch: it was measured with other layers, or rotates channels that keys do not
                have.
        """
        self.check_layers(layer.depth)
        tensors = self.by_layer[layer.ordinal]
        if not tensors.keys() >= set(TURNS):
            return no_rotation(layer.k.device)
        frequencies, pairs = (tensors[name] for name in TURNS)
        r, channels = len(frequencies), layer.k.shape[-1]
        if pairs.shape != (2, r) or bool(((pairs < 0) | (pairs >= channels)).any()):
            raise self.mismatch(
                f"of {self.model!r} turns other channels than the {channels} of the keys of layer "
                f"{layer.number}"
            )
        return Rotation(pairs[0], pairs[1], frequencies).to(layer.k.device)


def load_tensors(path: str, method: str) -> TensorProfile:
    """Read a profile of tensors; a file that has not changed is read once.

    Raises:
        InvalidInput: the file does not exist, is damaged, or is no profile of this version.
        ProfileMismatch: the profile is of another method.
    """
    return load_as(path, method, _read)


def method_of(path: str) -> str:
    """Return the method of a profile of tensors.

    Raises:
        InvalidInput: the file is damaged, or is no profile of this version.
    """
    file = Path(path).absolute()
    return _read(file, file.stat().st_mtime_ns).method


@lru_cache(maxsize=8)
def _read(path: Path, stamp: int) -> TensorProfile:
    """Read a file whose modification time is ``stamp``, which only keys the cache."""
    try:
        check_file(path)
        note, tensors = read_tensors(path)
    except (InvalidInput, SafetensorError, OSError, ValueError) as error:
        raise InvalidInput(
            f"{path} is not a profile of tensors: {str(error).rstrip('.')}."
        ) from error
    if note.get("schema") != SCHEMA:
        raise InvalidInput(
            f"{path} has the profile schema {short_repr(note.get('schema'))}, expected {SCHEMA!r}."
        )
    for name in (*FIELDS, "longest"):
        entry = note.get(name, "0" if name in LATER else None)
        counts = name in ("layers", "samples", "longest")
        if entry is None or (counts and not (entry.isascii() and entry.isdigit())):
            raise InvalidInput(
                f"{path} is not a profile of tensors: its {name} is {short_repr(entry)}."
            )
    layers = int(note["layers"][:9])
    by_layer: list[dict[str, Tensor]] = [{} for _ in range(min(layers, len(tensors)))]
    for name, tensor in tensors.items():
        kind, _, number = name.rpartition(".")
        if not number.isdigit() or int(number[:9]) >= len(by_layer):
            raise InvalidInput(
                f"{path} says {layers} layers and holds the tensor {short_repr(name)}."
            )
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
    """Raise InvalidInput unless it has the tensors of its method, with finite numbers."""
    gathering = GATHERINGS[profile.method]
    names, targets = set(gathering.names), targets_of(gathering)
    may_have = TURNS if turns_far_keys(gathering) else ()
    if targets and profile.target not in targets:
        raise InvalidInput(
            f"{path} is a profile of {profile.method} whose target is "
            f"{short_repr(profile.target)}: it is of another version, and this one knows "
            f"{', '.join(targets)}."
        )
    if len(profile.by_layer) != profile.layers or not profile.layers:
        raise InvalidInput(
            f"{path} says {profile.layers} layers and holds tensors of {len(profile.by_layer)}."
        )
    for layer, tensors in enumerate(profile.by_layer):
        if not names <= set(tensors) <= names.union(may_have):
            raise InvalidInput(
                f"{path} is not a profile of {profile.method}: layer {layer} has the tensors "
                f"{sorted(tensors)} instead of {sorted(names)}."
            )
        for name, tensor in tensors.items():
            if not bool(tensor.isfinite().all()):
                raise InvalidInput(f"{path} holds numbers in {name}.{layer} that are not finite.")
