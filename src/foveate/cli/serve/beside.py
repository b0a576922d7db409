"""The profile that lies beside a model, and what ``foveate serve`` makes of it."""

from __future__ import annotations

from pathlib import Path

from foveate.compression.composition import BY_DEFAULT, name_and_arguments
from foveate.compression.composition import policy as policy_of
from foveate.defaults import METHOD, PLACE, VARIABLE
from foveate.errors import InvalidInput
from foveate.profiles import installed


def profile_place(model: str) -> Path:
    """Where the profile of the model in that directory lies, if it has one."""
    return Path(model).expanduser() / PLACE


def profile_of(model: str) -> Path | None:
    """The profile of ``recommended`` that lies beside a model, or is installed for its name."""
    place = profile_place(model)
    return place if place.is_file() else installed.find(METHOD, place.absolute().parents[1].name)


def served(model: str, spec: str | None) -> str:
    """The spec to serve a model with: the one given, with the model's profile where it is of
    ``recommended`` and names none; recommended:budget=20% with that profile where none is given.

    Raises:
        InvalidInput: none is given, and the model has no profile.
    """
    profile = profile_of(model)
    place = profile_place(model)
    if spec is None and profile is None:
        raise InvalidInput(
            "no policy is given: say --policy SPEC, such as --policy snapkv:budget=20%, or set "
            f"{VARIABLE}. A model in a directory is served with {BY_DEFAULT} once 'foveate "
            f"calibrate {METHOD} --model {model} --out {place}' has made its profile."
        )
    spec = BY_DEFAULT if spec is None else spec
    name, said = name_and_arguments(spec)
    if name != METHOD or "profile" in said or profile is None:
        return spec
    given = {"budget": "20%"} if "budget" not in said else {}
    return policy_of(spec, **given, profile=profile.as_posix(), heads="by_profile").spec
