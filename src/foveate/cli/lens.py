"""``foveate lens``: an HTML page of the tokens that every head keeps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foveate.cli import console, options
from foveate.cli.options import check_file, flag, model_option, option
from foveate.defaults import SEES
from foveate.errors import InvalidParameter

if TYPE_CHECKING:
    from foveate.pictures.lens import Lens
    from foveate.policies.policy import Policy

TOKENS_BY_DEFAULT = 24  # of an answer on a lens
BUDGETS_BY_DEFAULT = ("20%", "33%", "50%", "75%")


def lens(
    model: Annotated[str, model_option(SEES)] = SEES,
    image: options.Images = None,
    video: options.Videos = None,
    fps: options.Fps = None,
    frames: options.Frames = None,
    prompt: options.Text = None,
    method: options.Specs = None,
    budget: Annotated[
        list[str] | None,
        option("B", "Step of the budget slider, e.g. 20% or 256 (tokens); repeatable."),
    ] = None,
    out: Annotated[
        Path, option("FILE", "HTML file to write, e.g. page.html.", "--out", "-o")
    ] = Path("lens.html"),
    answers: Annotated[
        bool, flag("--answers", "Show answers, too; one is generated for each method and budget.")
    ] = False,
    max_new_tokens: Annotated[
        int | None,
        option(
            "N",
            f"Maximum length of an answer in tokens, e.g. 48. [default: {TOKENS_BY_DEFAULT}]",
            min=1,
        ),
    ] = None,
    trust_remote_code: options.TrustRemoteCode = False,
    device_map: options.DeviceMap = None,
    dtype: options.Dtype = "auto",
) -> None:
    """Write an HTML page that shows which patches and words every head keeps. It needs no network.

    It compares methods (by default recommended, snapkv, lookm and mixkv) at the budgets of
    --budget, of the specs, or else at 20, 33, 50 and 75 %. With --answers it also shows answers:
    the full cache's, and one for each method at each budget.
    """
    from foveate.cli.findings import counted, of_page
    from foveate.cli.policies import by_default, with_known_profile
    from foveate.cli.prompt import clip_line, clips_of, question
    from foveate.cli.tables import short
    from foveate.compression.labels import budget_of, label
    from foveate.loading.model import load
    from foveate.pictures.lens import compared, lens_of
    from foveate.prompts.prompt import read
    from foveate.prompts.videos import pictures

    check_file("lens", "--out", out)
    longest = _answer_limit(answers, max_new_tokens)
    specs = [with_known_profile(spec, model) for spec in method or by_default(model)]
    budgets = budget or []
    policies = [
        ladder for spec in specs for ladder in compared([spec], budgets or _default_budgets(spec))
    ]
    text, images = question(model, prompt, image or [], video or [])
    clips = clips_of(video or [], fps, frames)
    with console.progress(hidden=False) as bars:
        task = bars.add_task(f"loading {model}", total=None)
        loaded = load(model, trust_remote_code, device_map, dtype)
        own_prompt = read(loaded, text, images, clips=clips)
        views, times = pictures(clips, images, own_prompt.inputs)
        bars.reset(task, description=f"reading {own_prompt.tokens:,} tokens", total=None)

        def report(policy: Policy, done: int, of: int) -> None:
            description = f"{short(label(policy))} {budget_of(policy) or ''} answers"
            bars.update(task, description=description, total=of, completed=done)

        page = lens_of(
            loaded.model,
            loaded.reader,
            own_prompt.inputs,
            views,
            policies,
            loaded.name,
            longest,
            report,
            times,
        )
    content = f"{own_prompt.tokens:,} tokens, {counted(len(policies), 'method')}"
    budgets = [str(budget_of(policy)) for policy in max(policies, key=len)]
    content += f"\nat budgets of {', '.join(budgets)}" if len(budgets) > 1 else ""
    for clip in clips:
        typer.echo(clip_line(clip, loaded), err=True)
    typer.echo(of_page(page.save(out), f"what every head keeps of {content}{_agreement(page)}"))


def _answer_limit(answers: bool, max_new_tokens: int | None) -> int | None:
    """Return the maximum number of tokens of an answer; None without answers."""
    if not answers and max_new_tokens is not None:
        raise InvalidParameter(
            f"--max-new-tokens {max_new_tokens} needs answers: add --answers, or leave it out."
        )
    return (max_new_tokens or TOKENS_BY_DEFAULT) if answers else None


def _agreement(page: Lens) -> str:
    """Return a line with the number of answers equal to the full cache's; "" without answers."""
    from foveate.cli.findings import counted

    if page.answers is None:
        return ""
    answers = [answer for ladder in page.answers.choices for answer in ladder]
    same = sum(answer.same for answer in answers)
    return f".\n{same} of {counted(len(answers), 'answer')} are the full cache's"


def _default_budgets(spec: str) -> tuple[str, ...]:
    """Return the default budgets, or none for a spec with its own."""
    from foveate.compression.composition import name_and_arguments

    return () if "budget" in name_and_arguments(spec)[1] else BUDGETS_BY_DEFAULT
