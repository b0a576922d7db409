"""Installed profiles, which are found by the model that they were measured on.

They are in one folder, ``$FOVEATE_PROFILES``, or ``foveate/profiles`` in the folder for
applications' data (``$XDG_DATA_HOME``, by default ``~/.local/share``). Each has a folder there,
with the profile and, if it was shared with one, its manifest.
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
    """A profile, its path, and the contents of its manifest, if it has one."""

    path: Path
    profile: Heading
    manifest: Mapping[str, Any] | None = None


def folder() -> Path:
    """Return the folder of installed profiles."""
    if path := os.environ.get(VARIABLE):
        return Path(path).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "foveate" / "profiles"


def listed() -> tuple[list[Installed], list[FoveateError]]:
    """Return the installed profiles, sorted by model and method, and the errors of others."""
    profiles: list[Installed] = []
    broken: list[FoveateError] = []
    for subfolder in sorted(path for path in folder().glob("*") if path.is_dir()):
        try:
            profiles.append(opened(subfolder))
        except FoveateError as error:
            broken.append(error)
    return profiles, broken


def find(method: str, model: str, weights: Callable[[], str] = str) -> Path | None:
    """Return the installed profile of a method for the model of that name; None if there is none.

    ``weights`` returns the model's digest. It is called only if there is a profile, and has to
    match it if both digests are known.

    Raises:
        ProfileMismatch: all profiles for that name are of other weights.
    """
    named = [
        candidate
        for candidate in listed()[0]
        if (candidate.profile.method, candidate.profile.model) == (method, model)
    ]
    if not named:
        return None
    digest = weights()
    fits = [
        candidate for candidate in named if not digest or candidate.profile.weights in ("", digest)
    ]
    if not fits:
        named[-1].profile.check_weights(digest)
    return fits[-1].path


def install(path: Path, model: str | None = None) -> Installed:
    """Copy a profile, or the folder of a shared one, to the folder of installed profiles.

    It replaces one of the same model, method and weights.

    Raises:
        InvalidInput: the file does not exist, is damaged, or differs from its manifest.
        ProfileMismatch: it is of another model than ``model``, if that is not None.
        CannotWrite: the folder is not writable.
    """
    source_profile = opened(path)
    if model is not None:
        source_profile.profile.check_model(model)
    heading = source_profile.profile
    name = "-".join(x for x in (heading.model, heading.method, heading.weights) if x)
    target = folder() / re.sub(r"[^\w.-]|^\.", "_", name)
    with files.reporting(target):
        target.mkdir(parents=True, exist_ok=True)
        for old_file in target.iterdir():
            old_file.unlink()
    for source in (source_profile.path, *([path / MANIFEST] if source_profile.manifest else [])):
        files.write(target / source.name, source.read_bytes())
    return opened(target)


def remove(installed: Installed) -> None:
    """Delete an installed profile."""
    with files.reporting(installed.path.parent):
        shutil.rmtree(installed.path.parent)


def opened(path: Path) -> Installed:
    """Read a profile from a file, or from a folder, checked against the manifest in it.

    Raises:
        InvalidInput: there is none, or not exactly one, it is damaged, or differs from its
            manifest.
        ProfileMismatch: its manifest names another model or other weights.
    """
    manifest_path = path / MANIFEST
    if not path.is_dir():
        check_file(path)
        return Installed(path, _read(path))
    contents = manifest.read(manifest_path, SCHEMA, AGAIN) if manifest_path.is_file() else None
    names = list(contents["files"]) if contents else [p.name for p in _profiles(path)]
    if len(names) != 1 or Path(names[0]).name != names[0]:
        raise InvalidInput(
            f"{str(path)!r} holds {len(names)} profiles, not one: {', '.join(names) or 'none'}."
            " Name the file."
        )
    file = path / names[0]
    if contents is None:
        return Installed(file, _read(file))
    manifest.check(file, contents["files"][file.name], AGAIN)
    heading = _read(file)
    _agree(manifest_path, contents, heading)
    return Installed(file, heading, contents)


def _profiles(path: Path) -> list[Path]:
    return sorted(p for p in path.iterdir() if p.suffix in ENDINGS and p.name != MANIFEST)


def _read(path: Path) -> Heading:
    """Read a profile of tensors or numbers, by the file's ending."""
    if path.suffix == ".safetensors":
        return tensor_profile.load_tensors(str(path), tensor_profile.method_of(str(path)))
    method = profile.method_of(str(path))
    return profile.load(str(path), method or path.stem)


def _agree(path: Path, contents: Mapping[str, Any], heading: Heading) -> None:
    for name in ("method", "model", "weights"):
        if contents.get(name) != getattr(heading, name):
            raise ProfileMismatch(
                f"{str(path)!r} says {name}={contents.get(name)!r}, and its profile "
                f"{getattr(heading, name)!r}. {AGAIN}"
            )
