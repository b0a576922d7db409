"""Summaries of a profile, a page and a run in a few lines, with the next command to try."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from foveate.cli.policies import is_demo
from foveate.cli.serve.profile import profile_place
from foveate.defaults import BUDGET_BY_DEFAULT, METHOD
from foveate.methods.recommended.head_levels import HeadLevels
from foveate.policies.spec import print_value
from foveate.profiles.profile import Profile
from foveate.profiles.tensor_profile import TensorProfile

FITTED = {
    "answers": "damage to heads' outputs, and to the model's own answers",
    "damage": "damage to heads' outputs; answers could not be measured",
    "contribution": "contribution to the residual stream, as KVzip+ counts it",
    "attention": "attention; the output projections could not be read",
}
LENGTH = 1000  # tokens of the prompt for which a profile's shares are computed


def describe_profile(profile: Profile | TensorProfile, path: Path, model: str) -> str:
    """Summarize a profile: its model, its numbers, the spec with it, and the command to try it."""
    count = f"{profile.samples} prompt{'s' if profile.samples > 1 else ''}"
    lines = [f"{path}: {profile.method} on {profile.model},", f"{profile.layers} layers, {count}"]
    if isinstance(profile, TensorProfile) and profile.target:
        lines.append(f"fitted to {FITTED[profile.target]}")
    lines += _range_lines(profile, path)
    budget = profile.budget or BUDGET_BY_DEFAULT
    spec = f"{profile.method}:budget={budget},profile={print_value(path.as_posix())}"
    lines += ["", f"Spec with this profile: {spec}"]
    lines.append(f"Next: foveate run --model {model} \\\n      --method {spec}")
    if profile.method == METHOD and Path(model).is_dir() and path != profile_place(model):
        lines.append(f"To serve the model with it, move it to {profile_place(model)}")
    return "\n".join(lines)


def _range_lines(profile: Profile | TensorProfile, path: Path) -> list[str]:
    """Return the range of the profile's numbers, or of the shares that heads keep by it."""
    if isinstance(profile, Profile):
        return [_format_range(profile.by_layer)]
    if "levels" not in profile.by_layer[0]:
        named = {name: tuple(tensor.shape) for name, tensor in profile.by_layer[0].items()}
        return ["of each layer: " + ", ".join(f"{name} {shape}" for name, shape in named.items())]
    heads = len(profile.by_layer[0]["levels"])
    rule = HeadLevels(amount=BUDGET_BY_DEFAULT, profile=str(path), of=profile.method)
    kept = rule.by_head(profile.layers, heads)(LENGTH // 5, 1, LENGTH)
    shares = [
        [100 * n / LENGTH for n in kept[at : at + heads]] for at in range(0, len(kept), heads)
    ]
    return [f"at {BUDGET_BY_DEFAULT} a head keeps, in percent:", _format_range(shares)]


def _format_range(by_layer: Sequence[float] | Sequence[Sequence[float]]) -> str:
    """Format a range: 0.1 (layer 3, head 2) to 0.9 (layer 0, head 1), 0.4 on average."""
    by_name = {
        f"layer {layer}" + (f", head {head}" if isinstance(row, Sequence) else ""): number
        for layer, row in enumerate(by_layer)
        for head, number in enumerate(row if isinstance(row, Sequence) else [row])
    }
    least, greatest = min(by_name, key=by_name.__getitem__), max(by_name, key=by_name.__getitem__)
    return (
        f"{by_name[least]:.3g} ({least}) to {by_name[greatest]:.3g} ({greatest}), "
        f"{mean(by_name.values()):.3g} on average"
    )


def after_run(model: str, as_shown: bool, drawn: bool, video: Path | None = None) -> str:
    """Suggest commands after ``foveate run``: a picture, more questions, a video, or a profile."""
    if video is not None:
        # the demo reads pages of 192 tokens, so few of them
        return after_video(model, video, 0.25 if is_demo(model) else 1)
    if is_demo(model):
        drawable = as_shown and not drawn
        lines = ["On the images:      foveate run --picture kept.png"] if drawable else []
        return "\n".join([*lines, "On more questions:  foveate eval --limit 20 --out results"])
    return (
        f"With its profile:   foveate calibrate {METHOD} --model {model}\n"
        f"On more questions:  foveate eval --model {model} --out results"
    )


def after_video(model: str, video: Path, fps: float) -> str:
    """Suggest commands after a video was read: questions in turns, and the lens."""
    named = "" if is_demo(model) else f"--model {model} "
    return (
        f"Question by question: foveate watch {video} {named}--fps {fps:g}\n"
        f"On a time line:       foveate lens {named}--video {video} --prompt TEXT"
    )


def of_page(path: Path, content: str) -> str:
    """Return the message that a page was written: its path, its content, how to open it."""
    return f"{path}: {content}.\nOpen it in a browser; it needs no network."


def counted(number: int, thing: str) -> str:
    """Return a number of things: "1 task", "3 tasks"."""
    plural = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
    return f"{number:,} {thing if number == 1 else plural}"
