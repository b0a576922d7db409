"""``foveate profiles``: which are installed, for which models; installing others; the folder that
``foveate calibrate --share`` writes to hand one on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foveate.cli import console
from foveate.cli.options import option
from foveate.errors import FoveateError, InvalidInput, suggest

if TYPE_CHECKING:
    from foveate.profiles.installed import Installed
    from foveate.profiles.profile import Profile
    from foveate.profiles.tensor_profile import TensorProfile

ACTIONS = ("list", "install", "remove")


def profiles(
    action: Annotated[
        str, typer.Argument(metavar="[list|install|remove]", help="What to do.")
    ] = "list",
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH...",
            help="To install: files, or folders that 'foveate calibrate --share' wrote. To remove: "
            "as the list has them.",
        ),
    ] = None,
    model: Annotated[
        str | None, option("NAME", "Refuse to install what is of another model.")
    ] = None,
    json: console.Json = False,
) -> None:
    """List the profiles that are installed and the models they are of, or install others.

    An installed profile is taken wherever its method is used on its model and names none.
    """
    from foveate.profiles import installed

    if action not in ACTIONS:
        raise InvalidInput(f"{action!r} is nothing to do with profiles. {suggest(action, ACTIONS)}")
    if (action == "list") == bool(places):
        what = "takes no paths" if places else "needs the paths of profiles"
        raise InvalidInput(f"'foveate profiles {action}' {what}.")
    entries: Sequence[Installed]
    broken: Sequence[FoveateError] = ()
    if action == "install":
        entries = [installed.install(place, model) for place in places or ()]
    elif action == "remove":
        entries = [_removed(place) for place in places or ()]
    else:
        entries, broken = installed.listed()
    if json:
        console.print_json({"folder": str(installed.folder()), "profiles": [*map(_row, entries)]})
    else:
        _show(action, entries)
    for error in broken:
        typer.echo(f"Error: {error}", err=True)
    if broken:
        raise typer.Exit(1)


def _removed(place: Path) -> Installed:
    """One of the list, by its file or its folder."""
    from foveate.profiles import installed

    for one in installed.listed()[0]:
        if place.absolute() in (one.path.absolute(), one.path.parent.absolute()):
            installed.remove(one)
            return one
    raise InvalidInput(f"{str(place)!r} is none of the profiles that 'foveate profiles' lists.")


def _row(one: Installed) -> dict[str, object]:
    profile = one.profile
    return {
        "model": profile.model,
        "method": profile.method,
        "weights": profile.weights,
        "prompts": profile.samples,
        "target": getattr(profile, "target", ""),
        "shared": one.manifest is not None,
        "path": str(one.path),
    }


def _show(action: str, entries: Sequence[Installed]) -> None:
    from foveate.cli.findings import FITTED
    from foveate.profiles import installed

    if not entries:
        typer.echo(f"No profile is installed in {installed.folder()}.")
        typer.echo("Make one: foveate calibrate recommended --model MODEL --share")
        return
    said = {"list": "", "install": "installed: ", "remove": "removed: "}[action]
    for one in entries:
        row = _row(one)
        weights = f" (weights {row['weights']})" if row["weights"] else ""
        typer.echo(f"{said}{row['method']} on {row['model']}{weights}, {row['prompts']} prompts")
        if fitted := FITTED.get(str(row["target"])):
            typer.echo(f"  fitted to {fitted}")
        if action != "remove":
            typer.echo(f"  {row['path']}")


def share(profile: Profile | TensorProfile, path: Path, prompts: Path | None) -> Path:
    """Writes the manifest of a profile that lies at ``path``, beside it: whose it is, on which
    weights and prompts it was measured, and by which versions, so that whoever has the model can
    make it again and compare.

    Args:
        profile: as it was saved.
        path: of its file.
        prompts: the file that they came from; None for those that come with Foveate.

    Raises:
        CannotWrite: the disk is full, or the folder is not to be written to.
    """
    from foveate.loading.hardware import versions_of_results
    from foveate.profiles import manifest
    from foveate.profiles.installed import MANIFEST, SCHEMA
    from foveate.profiles.tensor_profile import TensorProfile

    said: dict[str, Any] = {
        "schema": SCHEMA,
        "method": profile.method,
        "model": profile.model,
        "weights": profile.weights,
        "layers": profile.layers,
        "budget": profile.budget,
        "prompts": {"count": profile.samples, "from": "drawn"},
        "versions": versions_of_results(),
    }
    if prompts is not None:
        said["prompts"] |= {"from": prompts.name, **manifest.measured(prompts)}
    if isinstance(profile, TensorProfile):
        said["target"] = profile.target
        said["prompts"]["digest"] = profile.prompts
    return manifest.write(path.with_name(MANIFEST), said, (path.name,))
