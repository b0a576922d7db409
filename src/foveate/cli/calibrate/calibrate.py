"""``foveate calibrate SPEC``: measure a method's profile on a model, and write it to a file."""

from __future__ import annotations

from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foveate.cli import console, options
from foveate.cli.options import check_file, flag, known, model_option, option
from foveate.defaults import BUDGET_BY_DEFAULT, READS, SAMPLES, SEES, DeviceMap
from foveate.errors import InvalidInput

if TYPE_CHECKING:
    from foveate.policies.policy import Policy
    from foveate.profiles.profile import Profile
    from foveate.profiles.tensor_profile import TensorProfile

DRAWN = ("fast_kvzip", "kvzap", "recommended")
"""Methods whose calibration draws prompts of several kinds and lengths where none are given: they
profit from variety.
"""


def calibrate(
    spec: Annotated[
        str,
        typer.Argument(
            help="Method to calibrate: recommended, kvzap, prefixkv:budget=20%, mixkv, headkv, "
            "sparsemm, q_filters, triattention or expected_attention.",
            callback=known,
        ),
    ],
    out: Annotated[
        Path | None,
        option(
            "FILE", "File to write, e.g. profile.json. [default: METHOD.json or METHOD.safetensors]"
        ),
    ] = None,
    model: Annotated[str | None, model_option(f"{READS}, for scores of heads {SEES}")] = None,
    prompts: Annotated[
        Path | None,
        option(
            "FILE",
            'Prompts in JSON lines, e.g. {"prompt": TEXT, "images": [FILE, ...], "videos": '
            '[FILE, ...]}. recommended also reads "questions", texts that follow the prompt; '
            'scores of heads need "images", "answer" and "spans". [default: passages of a text '
            "that comes with Foveate; for scores of heads, questions about drawn documents; for "
            "recommended, kvzap and fast_kvzip, drawn pages, or a manual's text for a text-only "
            "model]",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        option(
            "N",
            f"Maximum number of prompts, e.g. 20. [default: 10; for {', '.join(DRAWN)} {SAMPLES}]",
            min=1,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        option(
            "N",
            "Random seed for the selection of prompts, e.g. 1; by default, the first are taken.",
            min=0,
        ),
    ] = None,
    longer_than: Annotated[
        int | None, option("N", "Length that prompts must exceed, in letters, e.g. 2000.", min=0)
    ] = None,
    up_to: Annotated[
        int | None, option("N", "Maximum length of prompts in letters, e.g. 20000.", min=1)
    ] = None,
    video: options.Videos = None,
    fps: options.Fps = None,
    frames: options.Frames = None,
    shared: Annotated[
        bool,
        flag(
            "--share",
            "Write a folder to share, with the profile and a manifest of its measurement; "
            "--out names the folder. [default: METHOD-MODEL]",
        ),
    ] = False,
    published: Annotated[
        Path | None,
        option(
            "FILE",
            "Published file to convert instead of measuring, e.g. scores.json, by the authors of "
            "prefixkv:budget=20%, sparsemm, headkv, mixkv, duo_attention or fast_kvzip; needs "
            "--model.",
            "--from",
        ),
    ] = None,
    allow_outside: options.Outside = False,
    trust_remote_code: options.TrustRemoteCode = False,
    device_map: options.DeviceMap = None,
) -> None:
    """Measure a method's profile on a model, as the mean over several prompts.

    Use it with profile=FILE in the method's spec. A profile is valid for its model, and for
    prefixkv also only for the budget that it was measured at.
    """
    from foveate.cli.calibrate import prompts as sources
    from foveate.cli.findings import describe_profile
    from foveate.cli.profiles import share
    from foveate.cli.prompt import Which, clips_of, samples_of
    from foveate.cli.serve.profile import profile_place
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
        ignored = (prompts, samples, seed, longer_than, up_to, video, fps, frames, shared or None)
        if any(option is not None for option in ignored):
            raise InvalidInput(
                "--from converts a file without measuring: leave out --prompts, --samples, --seed, "
                "--longer-than, --up-to, --video, --fps, --frames and --share."
            )
        _import(spec, published, out, model, trust_remote_code, device_map)
        return
    for_heads = spec in HEAD_READINGS
    gathered = gathered_method(spec)
    policy = None if for_heads or gathered else _policy(spec)
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
    is_drawn = prompts is None and not video and name in DRAWN
    if video and (prompts or for_heads):
        raise InvalidInput(
            "--video cannot be combined with --prompts or with scores of heads: leave it out, or "
            'name videos in --prompts FILE ("videos": [FILE, ...]).'
        )
    check_sampling(fps, frames)
    samples = samples or (SAMPLES if is_drawn else 10)
    which = Which(samples, seed, longer_than, up_to)
    if prompts is None and which != Which(samples):
        raise InvalidInput(
            "--seed, --longer-than and --up-to select prompts from a file: add --prompts FILE."
        )
    prompt_list: list[Any]
    if is_drawn:
        prompt_list = list(range(samples))
    elif for_heads:
        of_file = samples_of(prompts, which, outside=allow_outside) if prompts else None
        prompt_list = list(of_file or sources.generated(name, samples))
    else:
        prompt_list = list(
            sources.about_videos(video) if video else sources.texts_of(prompts, which)
        )
    if (
        is_drawn
        or for_heads
        or not any(record and record.has("videos") for _, record in prompt_list)
    ):
        clips_of([], fps, frames)  # raises for --fps and --frames where no prompt has a video
    with console.progress(hidden=False) as bars:
        chosen = model or (SEES if for_heads or is_drawn or video else READS)
        task = bars.add_task(f"loading {chosen}", total=None)
        loaded = load(chosen, trust_remote_code, device_map)
        bars.reset(task, description=f"calibrating {spec}", total=len(prompt_list))
        tracked = bars.track(prompt_list, task_id=task)
        profile: Profile | TensorProfile
        if for_heads:
            located = (sources.locate_spans(loaded, sample) for sample in tracked)
            profile = calibrate_heads(
                loaded.model, name, located, loaded.tokenizer, progress=progress
            )
        else:
            folder = Folder(prompts.parent if prompts else Path(), allow_outside or bool(video))
            texts = (
                (
                    text
                    for text, _ in zip(sources.contexts(loaded.sees, samples), tracked, strict=True)
                )
                if is_drawn
                else (
                    sources.context_of(text, record, folder, fps, frames)
                    for text, record in tracked
                )
            )
            inputs, others = tee(text.tokenized(loaded) for text in texts)
            profile = measure(
                loaded.model,
                policy or name,
                (prompt.inputs for prompt, _ in inputs),
                questions=(tails for _, tails in others) if name == "recommended" else None,
                progress=progress,
            )
    profile.save(path)
    if shared:
        share(profile, path, prompts)
    typer.echo(describe_profile(profile, path, chosen))
    if shared:
        typer.echo(f"To share: {path.parent}. To install: foveate profiles install {path.parent}")


def _import(
    spec: str,
    published: Path,
    out: Path | None,
    model: str | None,
    trust_remote_code: bool,
    device_map: DeviceMap | None,
) -> None:
    """Convert a file that a method's authors published into a profile."""
    from foveate.compression.composition import name_and_arguments
    from foveate.hf.measuring.author_files import import_profile
    from foveate.loading.model import load
    from foveate.policies.gathering import GATHERINGS

    if model is None:
        raise InvalidInput(f"--from {published} needs the model of the profile: add --model MODEL.")
    name = name_and_arguments(spec)[0]
    path = out or Path(f"{name}.{'safetensors' if name in GATHERINGS else 'json'}")
    check_file("profile", "--out", path)
    profile = import_profile(load(model, trust_remote_code, device_map).model, spec, published)
    profile.save(path)
    typer.echo(
        f"{path}: {profile.method} on {profile.model}, {profile.layers} layers, from {published}"
    )


def _policy(spec: str) -> Policy:
    from foveate.compression.composition import find, name_and_arguments
    from foveate.compression.composition import policy as policy_of

    name, arguments = name_and_arguments(spec)
    if "budget" in arguments or "budget" not in find(name).parameters:
        return policy_of(spec)
    return policy_of(spec, budget=BUDGET_BY_DEFAULT)
