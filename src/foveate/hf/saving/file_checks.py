"""Content of a saved cache's file, all of which is checked before any of it is used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from foveate.errors import InvalidInput
from foveate.hf.saving.identity import ModelIdentity

SCHEMA = "foveate-cache-3"
FINGERPRINTED = "foveate-cache-2"  # its "model" is a fingerprint without adapters and dtype
UNSIGNED = "foveate-cache-1"  # like schema 2, without digest of the content
FIELDS = ("model", "policy", "tokenizer", "seen")

# Axes: b rows, h KV heads, n slots, d and e channels of keys and values; see Pairs.tensors.
SHAPES = {
    "k": "b h n d",
    "v": "b h n e",
    "flat_k": "f d",
    "flat_v": "f e",
    "counts": "b h",
    "body.k": "p w",
    "body.k_least": "G d",
    "body.k_step": "G d",
    "body.sizes": "G",
    "body.v": "p u",
    "body.v_least": "S c",
    "body.v_step": "S c",
    "body.columns": "p",
    "body.counts": "b h",
    "thin.k": "p w",
    "thin.v": "p e",
    "thin.columns": "p",
    "thin.counts": "b h",
    "thin.channels": "b h w",
    "kept": "b h",
    "queries": "b q m d",
    "places": "b m",
    "running": "b h t",
    "keys": "b h n d",
    "values": "b h n e",
}
WHOLE = {"counts", "columns", "kept", "places", "sizes", "channels"}
"""Tensors of integers, by the last part of their names."""

COUNTED = (
    ("counts", "flat_k"),
    ("body.counts", "body.k"),
    ("body.sizes", "body.k"),
    ("thin.counts", "thin.k"),
)
EXTRA = "extra."
"""Name prefix of the model's own notes for each row."""

RUNNING = "running."
"""Name prefix of running statistics."""

OWN = "own."
"""Name prefix of pairs' tensors that only their store can interpret."""

CODES = {"body.k", "body.v"}
FAULT = "Make it anew: read the context and save it again."


def knows(names: Collection[str]) -> bool:
    """Return True for tensors of Foveate's own quantised stores, which are checked one by one."""
    return {*names} <= {*SHAPES, "columns"} and not held_exactly(names)


def held_exactly(names: Iterable[str]) -> bool:
    """Return True if a layer's pairs are in full precision, by the names of its tensors."""
    return not any(name.startswith(("body.", "thin.", OWN)) for name in names)


class Saved(NamedTuple):
    """Notes and tensors of a file, by name."""

    path: Path
    note: dict[str, str]
    tensors: dict[str, Tensor]

    @property
    def seen(self) -> dict[str, list[int]]:
        """Per layer: tokens seen, end of the compressed prompt, and first column that is not
        listed; for uncompressed layers, tokens seen only.

        Raises:
            InvalidInput: the note has other content.
        """
        try:
            seen = json.loads(self.note["seen"])
            fits = all(
                all(type(n) is int and 0 <= n < 2**31 for n in numbers) and numbers
                for numbers in seen.values()
            )
        except (ValueError, TypeError, AttributeError, RecursionError):
            fits = False
        if not fits:
            self.refuse(f"its note 'seen' is {self.note['seen'][:80]!r}")
        return dict(seen)

    @property
    def model(self) -> ModelIdentity | None:
        """Identity of the model that wrote the file; None in files of schema 1 and 2.

        Raises:
            InvalidInput: the note has other content.
        """
        if self.note["schema"] != SCHEMA:
            return None
        try:
            return ModelIdentity.from_json(self.note["model"])
        except (ValueError, TypeError) as error:
            self.refuse(f"its note 'model' cannot be read: {error}")

    @property
    def pairs_dtype(self) -> str:
        """Dtype of the first pairs in full precision, such as "bfloat16"; empty without any."""
        for name, tensor in sorted(self.tensors.items()):
            if name.endswith((".k", ".flat_k", ".keys")) and tensor.is_floating_point():
                return str(tensor.dtype).removeprefix("torch.")
        return ""

    def of_layer(self, index: int) -> dict[str, Tensor]:
        """Return the tensors of one layer, by their names without its number."""
        return named(self.tensors, f"{index}.")

    def refuse(self, what: str) -> NoReturn:
        """Raise InvalidInput for a damaged file."""
        raise InvalidInput(f"{str(self.path)!r} is a damaged saved cache: {what}. {FAULT}")


def named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the tensors whose names have a prefix; return them by the rest of their names."""
    return {k[len(prefix) :]: t for k, t in tensors.items() if k.startswith(prefix)}


def read(path: Path) -> Saved:
    """Read the file's notes and tensors to the CPU, and check its digest.

    Raises:
        InvalidInput: a missing file, no saved cache, or a changed one.
    """
    try:
        with safe_open(path, "pt", device="cpu") as file:
            note = file.metadata() or {}
            # Clones, since a mapped file may be overwritten, and its tensors start anywhere:
            # matrix products round differently where memory is not aligned.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{str(path)!r} is not a saved cache: {error}") from error
    saved = Saved(path, note, tensors)
    if (schema := note.get("schema")) not in (SCHEMA, FINGERPRINTED, UNSIGNED):
        raise InvalidInput(f"{str(path)!r} has the schema {schema!r}, expected {SCHEMA!r}.")
    for field in (*FIELDS, *([] if schema == UNSIGNED else ["digest"])):
        if field not in note:
            saved.refuse(f"it has no note {field!r}")
    if note.get("digest", "") != (digest(note, tensors) if "digest" in note else ""):
        saved.refuse("its content was changed, as its digest does not match")
    if schema == UNSIGNED:
        _check_finite(saved)
    return saved


def digest(note: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Hash the notes except the digest itself, and each tensor's name, dtype, shape and bytes."""
    entries = {name: text for name, text in note.items() if name != "digest"}
    hashed = hashlib.sha256(json.dumps(entries, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        hashed.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        raw = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
        hashed.update(raw.numpy().tobytes())
    return hashed.hexdigest()


def _check_finite(saved: Saved) -> None:
    for name, tensor in saved.tensors.items():
        scores = f".{RUNNING}" in name or name.startswith(EXTRA)
        if tensor.is_floating_point() and not scores and not bool(tensor.isfinite().all()):
            saved.refuse(f"its tensor {name!r} holds NaN or an infinite number")


def check_layer(saved: Saved, index: int, dims: Mapping[str, int], compressed: bool) -> int | None:
    """Check that one layer's tensors fit each other; return their number of rows, if they have one.
    Tensors that only their store can interpret are left to it.

    ``dims`` are the axes' lengths that are known from the model. Raises InvalidInput.
    """
    tensors, known = saved.of_layer(index), dict(dims)
    own_tensors = named(tensors, OWN)
    tensors = {name: t for name, t in tensors.items() if not name.startswith(OWN)}
    needed = set() if own_tensors else {"k", "v"} if compressed else {"keys", "values"}
    for part in ("body.", "thin."):
        if f"{part}k" in tensors:
            needed |= {name for name in SHAPES if name.startswith(part)}
    if "flat_k" in tensors:
        needed |= {"flat_v", "columns", "counts"}
    if missing := sorted(needed - tensors.keys()):
        saved.refuse(f"layer {index} has no tensor {missing[0]!r}")
    for name, tensor in sorted(tensors.items()):
        _check_tensor(saved, index, name, tensor, tensors, known)
    seen = saved.seen.get(str(index), [])
    if len(seen) != (3 if compressed else 1):
        saved.refuse(f"its note 'seen' says {seen} of layer {index}")
    if compressed and not own_tensors:
        _check_columns(saved, index, tensors, *seen)
    return known.get("b")


def _check_tensor(
    saved: Saved,
    index: int,
    name: str,
    tensor: Tensor,
    tensors: Mapping[str, Tensor],
    known: dict[str, int],
) -> None:
    kind = "running" if name.startswith(RUNNING) else name
    of_file = {"columns": "f" if "flat_k" in tensors else "b h s"}
    if "body.sizes" in tensors and not tensors["body.sizes"].numel():  # every pair is a group
        of_file |= {"body.k_least": "p x", "body.k_step": "p y", "body.v_step": "S z"}
    if "form" in saved.note:  # latents, which queries do not have the width of
        of_file["queries"] = "b q m a"
    axes = {**SHAPES, **of_file}.get(kind)
    actual = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    if axes is None:
        saved.refuse(f"layer {index} has a tensor {name!r}, which is unknown")
    is_integer = tensor.dtype in (torch.int16, torch.int32, torch.int64)
    must_be_integer = kind.rpartition(".")[2] in WHOLE
    dtype_fits = tensor.dtype == torch.uint8 if name in CODES else is_integer == must_be_integer
    names = axes.split()
    fits = (
        dtype_fits
        and len(names) == tensor.dim()
        and all(
            known.setdefault(axis, length) == length
            for axis, length in zip(names, tensor.shape, strict=True)
        )
    )
    if not fits:
        saved.refuse(
            f"layer {index}'s tensor {name!r} is {actual}, and has to be [{axes}] with "
            f"{', '.join(f'{axis}={known[axis]}' for axis in names if axis in known)}"
        )


def _check_columns(
    saved: Saved, index: int, tensors: Mapping[str, Tensor], seen: int, finished: int, first: int
) -> None:
    """Check that every pair has exactly one column."""
    slots, d = tensors["k"].shape[2:]
    dense = "columns" in tensors and "flat_k" not in tensors
    listed = tensors["columns"].shape[2] if dense else 0
    if finished > seen or listed > slots or first + slots - listed != seen:
        saved.refuse(
            f"layer {index} has seen {seen} tokens, {finished} of them in its prompt, and its "
            f"{slots} slots, {listed} of them listed, begin at {first}"
        )
    empty = tensors["k"].new_empty(0)
    for name in ("columns", "body.columns", "thin.columns"):
        columns: Any = tensors.get(name, empty)
        if columns.numel() and not 0 <= int(columns.min()) <= int(columns.max()) < seen:
            saved.refuse(f"layer {index}'s {name!r} are not all from 0 to {seen - 1}")
    channels: Any = tensors.get("thin.channels", empty)
    if channels.numel() and not 0 <= int(channels.min()) <= int(channels.max()) < d:
        saved.refuse(f"layer {index}'s 'thin.channels' are not all from 0 to {d - 1}")
    for counts, flat in COUNTED:
        if counts in tensors:
            numbers = tensors[counts]
            if counts == "body.sizes" and not numbers.numel():
                continue
            if bool((numbers < 0).any()) or int(numbers.sum()) != len(tensors[flat]):
                saved.refuse(f"layer {index}'s {counts!r} do not add up to its {flat!r}")
