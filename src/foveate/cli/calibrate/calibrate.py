"""``foveate calibrate SPEC``: measure a method's profile on a model, and write it to a file."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foveate.cli import console, options
from foveate.cli.completion import known
from foveate.cli.options import model_option
from foveate.cli.outputs import check_file
from foveate.defaults import BUDGET_BY_DEFAULT, READS, SAMPLES, SEES, DeviceMap
from foveate.errors import InvalidInput

if TYPE_CHECKING:
    from foveate.cli.prompt import Which
    from foveate.data import Record
    from foveate.policies.policy import Policy
    from foveate.profiles.profile import Profile
    from foveate.profiles.tensor_profile import TensorProfile

DRAWN = ("kvzap", "recommended")
"""Methods that read a prompt a second time to be calibrated: many kinds of prompts tell more."""


def calibrate(
    spec: Annotated[
        str,
        typer.Argument(
            help="recommended, kvzap, prefixkv:budget=20%, mixkv, headkv, sparsemm, q_filters, "
            "triattention or expected_attention.",
            callback=known,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Where to. [default: METHOD.json or METHOD.safetensors]"),
    ] = None,
    model: Annotated[str | None, model_option(f"{READS}, for scores of heads {SEES}")] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help='JSON lines, {"prompt": TEXT, "images": [FILE, ...], "videos": [FILE, ...]} each; '
            'for recommended with "questions", texts that follow the prompt; for scores of heads '
            'images, with "answer" and "spans". [default: passages of a text that comes with '
            "Foveate; for scores of heads questions about drawn documents; for recommended and "
            "kvzap drawn pages, or a manual's text for a model that reads]",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="The most prompts that are read. "
            f"[default: 10; for recommended and kvzap {SAMPLES}]",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, help="Draws the prompts from all of --prompts, not its first ones."
        ),
    ] = None,
    longer_than: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Of --prompts, those of more than N letters."),
    ] = None,
    up_to: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Of --prompts, those of at most N letters."),
    ] = None,
    video: options.Videos = None,
    fps: options.Fps = None,
    frames: options.Frames = None,
    shared: Annotated[
        bool,
        typer.Option(
            "--share",
            help="Write a folder to hand on: the profile, and a manifest of what it was measured "
            "on. --out is then that folder. [default: METHOD-MODEL]",
        ),
    ] = False,
    published: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Make it of a file that the method's authors publish, and measure nothing: of "
            "prefixkv:budget=20%, sparsemm, headkv, mixkv or duo_attention, for --model.",
        ),
    ] = None,
    allow_outside: options.Outside = False,
    trust_remote_code: options.TrustRemoteCode = False,
    device_map: options.DeviceMap = None,
) -> None:
    """Measure a method's profile on a model, as the mean over several prompts.

    Use it with profile=FILE in the method's spec. A profile belongs to the model, and where it
    depends on the budget (prefixkv), to the budget that it was measured at.
    """
    from foveate.cli.calibrate.contexts import contexts, of_record
    from foveate.cli.calibrate.head_samples import generated, shown
    from foveate.cli.findings import of_profile
    from foveate.cli.profiles import share
    from foveate.cli.prompt import Which, clips_of, samples_of
    from foveate.cli.serve.beside import profile_place
    from foveate.data import Folder, files
    from foveate.data.clip import check_sampling
    from foveate.hf.measuring.calibrate import calibrate as measure
    from foveate.hf.measuring.gather import gathered_method
    from foveate.hf.measuring.heads import calibrate_heads
    from foveate.loading.model import load
    from foveate.policies.gathering import GATHERINGS
    from foveate.policies.heads import HEAD_READINGS
    from foveate.profiles.profile import calibrated_method

    if published is not None:
        given = (prompts, samples, seed, longer_than, up_to, video, fps, frames, shared or None)
        if any(one is not None for one in given):
            raise InvalidInput(
                "--from measures nothing: leave out --prompts, --samples, --seed, --longer-than, "
                "--up-to, --video, --fps, --frames and --share."
            )
        _import(spec, published, out, model, trust_remote_code, device_map)
        return
    of_heads = spec in HEAD_READINGS
    gathered = gathered_method(spec)
    policy = None if of_heads or gathered else _policy(spec)
    name = gathered or (spec if policy is None else calibrated_method(policy))
    file = f"{name}.{'safetensors' if name in GATHERINGS else 'json'}"
    path = out or Path(file)
    if shared:
        path = (out or Path(f"{name}-{Path(model or 'shipped').name}")) / file
    if shared or path == profile_place(model or ""):
        with files.reporting(path.parent):
            path.parent.mkdir(parents=shared, exist_ok=True)
    check_file("profile", "--out", path)
    progress = path.with_name(f"{path.name}.part")
    draws = prompts is None and not video and name in DRAWN
    if video and (prompts or of_heads):
        raise InvalidInput(
            "--video is read alone, for profiles of no heads: leave it out, or name videos in "
            '--prompts FILE ("videos": [FILE, ...]).'
        )
    check_sampling(fps, frames)
    samples = samples or (SAMPLES if draws else 10)
    which = Which(samples, seed, longer_than, up_to)
    if prompts is None and which != Which(samples):
        raise InvalidInput(
            "--seed, --longer-than and --up-to choose from a file: give it with --prompts FILE."
        )
    prompt_list: list[Any]
    if draws:
        prompt_list = list(range(samples))
    elif of_heads:
        prompt_list = list(
            samples_of(prompts, which, outside=allow_outside)
            if prompts
            else generated(name, samples)
        )
    else:
        prompt_list = list(_films(video) if video else _asked(prompts, which))
    if draws or of_heads or not any(record and record.has("videos") for _, record in prompt_list):
        clips_of([], fps, frames)  # refuses what is said of no video
    with console.progress(hidden=False) as bars:
        chosen = model or (SEES if of_heads or draws or video else READS)
        task = bars.add_task(f"loading {chosen}", total=None)
        loaded = load(chosen, trust_remote_code, device_map)
        bars.reset(task, description=f"calibrating {spec}", total=len(prompt_list))
        each = bars.track(prompt_list, task_id=task)
        profile: Profile | TensorProfile
        if of_heads:
            samples_shown = (shown(loaded, one) for one in each)
            profile = calibrate_heads(
                loaded.model, name, samples_shown, loaded.tokenizer, progress=progress
            )
        else:
            folder = Folder(prompts.parent if prompts else Path(), allow_outside or bool(video))
            texts = (
                (one for one, _ in zip(contexts(loaded.sees, samples), each, strict=True))
                if draws
                else (of_record(text, record, folder, fps, frames) for text, record in each)
            )
            inputs, others = tee(text.tokenized(loaded) for text in texts)
            profile = measure(
                loaded.model,
                policy or name,
                (prompt.inputs for prompt, _ in inputs),
                questions=(one for _, one in others) if name == "recommended" else None,
                progress=progress,
            )
    profile.save(path)
    if shared:
        share(profile, path, prompts)
    typer.echo(of_profile(profile, path, chosen))
    if shared:
        typer.echo(
            f"To hand on: {path.parent}. Installed with: foveate profiles install {path.parent}"
        )


def _import(
    spec: str,
    published: Path,
    out: Path | None,
    model: str | None,
    trust_remote_code: bool,
    device_map: DeviceMap | None,
) -> None:
    """Makes a profile of what authors publish."""
    from foveate.compression.composition import name_and_arguments
    from foveate.hf.measuring.published import import_profile
    from foveate.loading.model import load

    if model is None:
        raise InvalidInput(f"--from {published}: say with --model PLACE which model it is of.")
    path = out or Path(f"{name_and_arguments(spec)[0]}.json")
    check_file("profile", "--out", path)
    made = import_profile(load(model, trust_remote_code, device_map).model, spec, published)
    made.save(path)
    typer.echo(f"{path}: {made.method} on {made.model}, {made.layers} layers, from {published}")


def _policy(spec: str) -> Policy:
    from foveate.compression.composition import find, name_and_arguments
    from foveate.compression.composition import policy as policy_of

    name, arguments = name_and_arguments(spec)
    if "budget" in arguments or "budget" not in find(name).parameters:
        return policy_of(spec)
    return policy_of(spec, budget=BUDGET_BY_DEFAULT)


def _asked(path: Path | None, which: Which) -> Sequence[tuple[str, Record | None]]:
    """Texts, and the records of the prompts file that they stand in.

    Raises:
        InvalidInput: the file is missing, empty, or has a line that is no prompt.
    """
    from foveate.cli.prompt import QUESTION, passages, prompts_of

    if path is None:
        return [(f"{text}\n\n{QUESTION}", None) for text in passages(which.samples)]
    return [_entry(record) for record in prompts_of(path, which)]


def _films(videos: Sequence[Path]) -> list[tuple[str, Record]]:
    """A prompt about each video."""
    from foveate.cli.prompt import DESCRIBE
    from foveate.data import Record

    return [(DESCRIBE, Record({"videos": [str(path.absolute())]}, "--video")) for path in videos]


def _entry(record: Record) -> tuple[str, Record | None]:
    """A record has images and videos, or none, and questions or none."""
    from foveate.cli.prompt import words_of

    for name in ("images", "videos", "questions"):
        if name in record.held:
            record.texts(name)
    return words_of(record), record
