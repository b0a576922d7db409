"""``foveate calibrate SPEC``: measure a method's profile on a model, and write it to a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from foveate.backends.hf.calibrate import calibrate as measure
from foveate.backends.hf.heads import calibrate_heads
from foveate.cli import console
from foveate.cli.files import check_writable, numbered_lines
from foveate.cli.heads import from_file, generated, shown
from foveate.cli.model import model_option
from foveate.cli.prompt import QUESTION, open_images, passages
from foveate.core.composition import find, name_and_arguments
from foveate.core.composition import policy as policy_of
from foveate.core.errors import InvalidInput
from foveate.core.heads import HEAD_READINGS
from foveate.core.policy import Policy
from foveate.core.profile import calibrated_method
from foveate.eval.contenders import BUDGET_BY_DEFAULT
from foveate.eval.model import READS, SEES, load
from foveate.eval.prompt import read


def calibrate(
    spec: Annotated[str, typer.Argument(help="prefixkv:budget=20%, mixkv, sparsemm or headkv.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to. [default: METHOD.json]")
    ] = None,
    model: Annotated[str | None, model_option(f"{READS}, for scores of heads {SEES}")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='JSON lines, {"prompt": TEXT, "images": [FILE, ...]} each; for scores of heads '
            'with "answer" and "spans". [default: passages of a text that comes with Foveate; for '
            "scores of heads questions about drawn documents]",
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
    of_heads = spec in HEAD_READINGS
    policy = None if of_heads else _policy(spec)
    name = spec if policy is None else calibrated_method(policy)
    path = out or Path(f"{name}.json")
    check_writable("profile", "--out", path)
    progress = path.with_name(f"{path.name}.part")
    asked: list[Any]
    if of_heads:
        asked = list(from_file(prompts, samples) if prompts else generated(name, samples))
    else:
        asked = list(_asked(prompts, samples))
    with console.progress(hidden=False) as bars:
        chosen = model or (SEES if of_heads else READS)
        task = bars.add_task(f"loading {chosen}", total=None)
        loaded = load(chosen)
        bars.reset(task, description=f"calibrating {spec}", total=len(asked))
        each = bars.track(asked, task_id=task)
        if policy is None:
            samples_shown = (shown(loaded, one) for one in each)
            profile = calibrate_heads(
                loaded.model, name, samples_shown, loaded.tokenizer, progress=progress
            )
        else:
            inputs = (read(loaded, text, open_images(images)).inputs for text, images in each)
            profile = measure(loaded.model, policy, inputs, progress=progress)
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
    return [_line(path, number, line) for number, line in numbered_lines(path)][:samples]


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
