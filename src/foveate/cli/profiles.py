"""``foveate profiles``: list, install and remove profiles.

Also the manifest that ``foveate calibrate --share`` writes beside a profile.
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
        str,
        typer.Argument(metavar="[list|install|remove]", help="Action: list, install or remove."),
    ] = "list",
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH...",
            help="Files to install, e.g. recommended.safetensors, or folders of 'foveate calibrate "
            "--share'; for remove, "
            "paths from the list.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        option("NAME", "Model that the profiles must be for, e.g. Qwen/Qwen2.5-VL-7B-Instruct."),
    ] = None,
    json: console.Json = False,
) -> None:
    """List, install or remove profiles.

    An installed profile applies wherever its method is used on its model without profile=FILE.
    """
    from foveate.profiles import installed

    if action not in ACTIONS:
        raise InvalidInput(f"unknown action {action!r}. {suggest(action, ACTIONS)}")
    if (action == "list") == bool(places):
        what = "takes no paths" if places else "needs the paths of profiles"
        raise InvalidInput(f"'foveate profiles {action}' {what}.")
    entries: Sequence[Installed]
    broken: Sequence[FoveateError] = ()
    if action == "install":
        entries = [installed.install(path, model) for path in places or ()]
    elif action == "remove":
        entries = [_remove(path) for path in places or ()]
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


def _remove(path: Path) -> Installed:
    """Remove the installed profile with that file or folder; raises InvalidInput without one."""
    from foveate.profiles import installed

    for entry in installed.listed()[0]:
        if path.absolute() in (entry.path.absolute(), entry.path.parent.absolute()):
            installed.remove(entry)
            return entry
    raise InvalidInput(f"no installed profile is at {str(path)!r}: 'foveate profiles' lists them.")


def _row(entry: Installed) -> dict[str, object]:
    profile = entry.profile
    return {
        "model": profile.model,
        "method": profile.method,
        "weights": profile.weights,
        "prompts": profile.samples,
        "target": getattr(profile, "target", ""),
        "shared": entry.manifest is not None,
        "path": str(entry.path),
    }


def _show(action: str, entries: Sequence[Installed]) -> None:
    from foveate.cli.findings import FITTED
    from foveate.profiles import installed

    if not entries:
        typer.echo(f"No profile is installed in {installed.folder()}.")
        typer.echo("Make one: foveate calibrate recommended --model MODEL --share")
        return
    prefix = {"list": "", "install": "installed: ", "remove": "removed: "}[action]
    for entry in entries:
        row = _row(entry)
        weights = f" (weights {row['weights']})" if row["weights"] else ""
        typer.echo(f"{prefix}{row['method']} on {row['model']}{weights}, {row['prompts']} prompts")
        if fitted := FITTED.get(str(row["target"])):
            typer.echo(f"  fitted to {fitted}")
        if action != "remove":
            typer.echo(f"  {row['path']}")


def share(profile: Profile | TensorProfile, path: Path, prompts: Path | None) -> Path:
    """Write the manifest of a saved profile beside it, and return the manifest's path.

    It names the model, the weights, the prompts and the versions that the profile was measured
    with, so that others can measure it again and compare.

    Args:
        profile: the profile, as it was saved.
        path: the profile's file.
        prompts: the file of its prompts; None for those that come with Foveate.

    Raises:
        CannotWrite: the disk is full, or the folder cannot be written to.
    """
    from foveate.loading.hardware import versions_of_results
    from foveate.profiles import manifest
    from foveate.profiles.installed import MANIFEST, SCHEMA
    from foveate.profiles.tensor_profile import TensorProfile

    content: dict[str, Any] = {
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
        content["prompts"] |= {"from": prompts.name, **manifest.measured(prompts)}
    if isinstance(profile, TensorProfile):
        content["target"] = profile.target
        content["prompts"]["digest"] = profile.prompts
    return manifest.write(path.with_name(MANIFEST), content, (path.name,))
