"""Profiles that are installed: found for the model that they are of, wherever it is used.

They stand in one folder, ``$FOVEATE_PROFILES``, or ``foveate/profiles`` where data of applications
stand (``$XDG_DATA_HOME``, by default ``~/.local/share``): one folder for each, which holds the
profile and, where it came with one, the manifest that it was shared with.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from foveate.data import files
from foveate.data.texts import check_file
from foveate.errors import FoveateError, InvalidInput, ProfileMismatch
from foveate.profiles import manifest, profile, tensor_profile
from foveate.profiles.heading import Heading

VARIABLE = "FOVEATE_PROFILES"
MANIFEST = "manifest.json"
SCHEMA = "foveate-profile-bundle-1"
AGAIN = "Ask whoever shared it to send it again, or make it anew with 'foveate calibrate --share'."
ENDINGS = (".safetensors", ".json")


class Installed(NamedTuple):
    """A profile, where it lies, and what its manifest says, if it has one."""

    path: Path
    profile: Heading
    manifest: Mapping[str, Any] | None = None


def folder() -> Path:
    """Where profiles are installed."""
    if path := os.environ.get(VARIABLE):
        return Path(path).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "foveate" / "profiles"


def listed() -> tuple[list[Installed], list[FoveateError]]:
    """Those that are installed, by model and method, and what is wrong with others."""
    profiles: list[Installed] = []
    broken: list[FoveateError] = []
    for one in sorted(path for path in folder().glob("*") if path.is_dir()):
        try:
            profiles.append(opened(one))
        except FoveateError as error:
            broken.append(error)
    return profiles, broken


def find(method: str, model: str, weights: Callable[[], str] = str) -> Path | None:
    """The installed profile of a method for the model of that name; if there is one, its digest of
    ``weights`` is asked for, and has to be the same where both are known.

    Raises:
        ProfileMismatch: those for that name are of other weights.
    """
    named = [
        one for one in listed()[0] if (one.profile.method, one.profile.model) == (method, model)
    ]
    if not named:
        return None
    mine = weights()
    fits = [one for one in named if not mine or one.profile.weights in ("", mine)]
    if not fits:
        named[-1].profile.check_weights(mine)
    return fits[-1].path


def install(path: Path, model: str | None = None) -> Installed:
    """Copies a profile, or the folder of one that was shared, to where it is found; one of the same
    method and weights is replaced.

    Raises:
        InvalidInput: no such file, a damaged one, or not as its manifest says.
        ProfileMismatch: it is of another model than ``model``, if that is given.
        CannotWrite: the place cannot be written to.
    """
    one = opened(path)
    if model is not None:
        one.profile.check_model(model)
    own_profile = one.profile
    name = "-".join(x for x in (own_profile.model, own_profile.method, own_profile.weights) if x)
    target = folder() / re.sub(r"[^\w.-]|^\.", "_", name)
    with files.reporting(target):
        target.mkdir(parents=True, exist_ok=True)
        for each in target.iterdir():
            each.unlink()
    for source in (one.path, *([path / MANIFEST] if one.manifest else [])):
        files.write(target / source.name, source.read_bytes())
    return opened(target)


def remove(one: Installed) -> None:
    """Takes an installed profile away."""
    with files.reporting(one.path.parent):
        shutil.rmtree(one.path.parent)


def opened(path: Path) -> Installed:
    """The profile in a file, or in a folder, checked against the manifest that lies beside it.

    Raises:
        InvalidInput: there is none, it is damaged, or not as its manifest says.
        ProfileMismatch: its manifest says another model or other weights.
    """
    place = path / MANIFEST
    if not path.is_dir():
        check_file(path)
        return Installed(path, _read(path))
    said = manifest.read(place, SCHEMA, AGAIN) if place.is_file() else None
    names = list(said["files"]) if said else [p.name for p in _profiles(path)]
    if len(names) != 1 or Path(names[0]).name != names[0]:
        raise InvalidInput(
            f"{str(path)!r} holds {len(names)} profiles, not one: {', '.join(names) or 'none'}."
            " Name the file."
        )
    file = path / names[0]
    if said is None:
        return Installed(file, _read(file))
    manifest.check(file, said["files"][file.name], AGAIN)
    heading = _read(file)
    _agree(place, said, heading)
    return Installed(file, heading, said)


def _profiles(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.suffix in ENDINGS and p.name != MANIFEST)


def _read(path: Path) -> Heading:
    """Whichever kind it is."""
    if path.suffix == ".safetensors":
        return tensor_profile.load_tensors(str(path), tensor_profile.method_of(str(path)))
    method = profile.method_of(str(path))
    return profile.load(str(path), method or path.stem)


def _agree(place: Path, said: Mapping[str, Any], heading: Heading) -> None:
    for name in ("method", "model", "weights"):
        if said.get(name) != getattr(heading, name):
            raise ProfileMismatch(
                f"{str(place)!r} says {name}={said.get(name)!r}, and its profile "
                f"{getattr(heading, name)!r}. {AGAIN}"
            )
