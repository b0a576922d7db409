"""Profile in a model's directory, and the spec that ``foveate serve`` uses with it."""

from __future__ import annotations

from pathlib import Path

from foveate.compression.composition import BY_DEFAULT, name_and_arguments
from foveate.compression.composition import policy as policy_of
from foveate.defaults import METHOD, PLACE, VARIABLE
from foveate.errors import InvalidInput
from foveate.profiles import installed


def profile_place(model: str) -> Path:
    """Return the path of the profile in a model's directory; the file may not exist."""
    return Path(model).expanduser() / PLACE


def profile_of(model: str) -> Path | None:
    """Return the profile of ``recommended`` in a model's directory or installed for its name."""
    path = profile_place(model)
    return path if path.is_file() else installed.find(METHOD, path.absolute().parents[1].name)


def served(model: str, spec: str | None) -> str:
    """Return the spec to serve a model with.

    ``recommended`` without a profile gets the model's own, if there is one. Without a ``spec``, it
    is recommended:budget=20% with that profile.

    Raises:
        InvalidInput: there is neither a ``spec`` nor a profile.
    """
    profile = profile_of(model)
    path = profile_place(model)
    if spec is None and profile is None:
        raise InvalidInput(
            "there is no policy: add --policy SPEC, e.g. --policy snapkv:budget=20%, or set "
            f"{VARIABLE}. A model directory is served with {BY_DEFAULT} once 'foveate "
            f"calibrate {METHOD} --model {model} --out {path}' has measured its profile."
        )
    spec = BY_DEFAULT if spec is None else spec
    name, arguments = name_and_arguments(spec)
    if name != METHOD or "profile" in arguments or profile is None:
        return spec
    defaults = {"budget": "20%", "heads": "by_profile"}
    missing = {name: value for name, value in defaults.items() if name not in arguments}
    return policy_of(spec, **missing, profile=profile.as_posix()).spec
