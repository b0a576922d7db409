"""``foveate calibrate SPEC``: measure a method's profile on a model, and write it to a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from foveate.backends.hf.calibrate import calibrate as measure
from foveate.cli import console
from foveate.cli.files import check_writable
from foveate.cli.model import READS, load, model_option
from foveate.cli.policies import BUDGET_BY_DEFAULT
from foveate.cli.prompt import QUESTION, open_images, passages, read
from foveate.core.composition import find, name_and_arguments
from foveate.core.composition import policy as policy_of
from foveate.core.errors import InvalidInput
from foveate.core.policy import Policy
from foveate.core.profile import calibrated_method


def calibrate(
    spec: Annotated[str, typer.Argument(help="The method: prefixkv:budget=20%, or mixkv.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to. [default: METHOD.json]")
    ] = None,
    model: Annotated[str, model_option(READS)] = READS,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='JSON lines, {"prompt": TEXT, "images": [FILE, ...]} each. '
            "[default: passages of a text that comes with Foveate]",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(metavar="N", min=1, help="The most prompts that are read.")
    ] = 10,
) -> None:
    """Measure a method's profile on a model, as the mean over several prompts.

    Use it with profile=FILE in the method's spec. A profile belongs to the model, and where it
    depends on the budget (prefixkv), to the budget that it was measured at.
    """
    policy = _policy(spec)
    name = calibrated_method(policy)
    path = out or Path(f"{name}.json")
    check_writable("profile", "--out", path)
    asked = list(_asked(prompts, samples))
    with console.progress(hidden=False) as bars:
        task = bars.add_task(f"loading {model}", total=None)
        loaded = load(model)
        bars.reset(task, description=f"calibrating {policy}", total=len(asked))

        def inputs() -> Iterator[dict[str, Any]]:
            for text, images in asked:
                yield read(loaded, text, open_images(images)).inputs
                bars.advance(task)

        profile = measure(loaded.model, policy, inputs())
    profile.save(path)
    typer.echo(
        f"{path}: {profile.method} on {profile.model}, {profile.layers} layers, "
        f"{profile.samples} prompt{'s' if profile.samples > 1 else ''}"
    )


def _policy(spec: str) -> Policy:
    name, arguments = name_and_arguments(spec)
    if "budget" in arguments or "budget" not in find(name).parameters:
        return policy_of(spec)
    return policy_of(spec, budget=BUDGET_BY_DEFAULT)


def _asked(path: Path | None, samples: int) -> Sequence[tuple[str, list[Path]]]:
    """Texts and their image files.

    Raises:
        InvalidInput: the file is missing, empty, or has a line that is no prompt.
    """
    if path is None:
        return [(f"{text}\n\n{QUESTION}", []) for text in passages(samples)]
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"the prompts file {str(path)!r} cannot be read: {error}") from error
    found = [_line(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise InvalidInput(f"the prompts file {str(path)!r} is empty: give one prompt a line.")
    return found[:samples]


def _line(path: Path, number: int, line: str) -> tuple[str, list[Path]]:
    expected = '{"prompt": TEXT, "images": [FILE, ...]}, with images if there are any'
    try:
        entry = json.loads(line)
        text, images = entry["prompt"], entry.get("images", [])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path}, line {number}: expected {expected}.") from error
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{path}, line {number}: the prompt {text!r} has no words.")
    if not isinstance(images, list) or not all(isinstance(name, str) for name in images):
        raise InvalidInput(f"{path}, line {number}: images={images!r}; expected {expected}.")
    return text, [path.parent / name for name in images]
