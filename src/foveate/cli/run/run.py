"""``foveate run``: one prompt, answered from the full cache and from compressed ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress
from rich.text import Text

from foveate.cli import console, options
from foveate.cli.options import model_option, option
from foveate.defaults import SEES

if TYPE_CHECKING:
    from foveate.cli.run.measure import ComparisonRow, Measured
    from foveate.cli.run.rows import Known
    from foveate.loading.model import Loaded
    from foveate.policies.policy import Policy
    from foveate.prompts.prompt import Prompt

_EXCERPT = 200  # characters of the prompt's end that are printed above the table
_WAIT = "loading the model; the first time it unpacks the language model, about 20 s"


def run(
    model: Annotated[str, model_option(SEES)] = SEES,
    image: options.Images = None,
    video: options.Videos = None,
    fps: options.Fps = None,
    frames: options.Frames = None,
    prompt: options.Text = None,
    method: options.Specs = None,
    budget: Annotated[
        list[str] | None,
        option("B", "Budget of each method, e.g. 20%, 256 (tokens) or 64MB; repeatable."),
    ] = None,
    max_new_tokens: options.AnswerLength = 64,
    rounds: Annotated[
        int,
        option("N", "Number of timed rounds over all methods, e.g. 5; times are medians.", min=1),
    ] = 3,
    picture: Annotated[
        Path | None, option("FILE", "Image file for a picture of the kept patches, e.g. kept.png.")
    ] = None,
    trust_remote_code: options.TrustRemoteCode = False,
    device_map: options.DeviceMap = None,
    dtype: options.Dtype = "auto",
    json: console.Json = False,
) -> None:
    """Compare answers to a prompt from the full cache and from compressed caches.

    The full cache comes first, then each method at each budget (by default recommended, snapkv,
    lookm and mixkv at 20%; on the demo model recommended with its profile, snapkv and lookm at
    10%). Without a prompt, the question is about three images that come with Foveate, or for a
    text-only model about a text of 1,000 words.
    """
    from foveate.cli.findings import after_run
    from foveate.cli.policies import ON_THE_DEMO, by_default, is_demo, policies
    from foveate.cli.prompt import clip_line, clips_of, question
    from foveate.cli.run import pictures
    from foveate.cli.run.rows import known_answers, rendered
    from foveate.loading.model import is_shipped, load
    from foveate.prompts.prompt import read
    from foveate.prompts.videos import pictures as pictures_of

    chosen = policies(method or by_default(model, ON_THE_DEMO), budget or [], model)
    as_shown = is_demo(model) and not (prompt or image or video or method or budget)
    known = known_answers() if as_shown else None
    text, images = question(model, prompt, image or [], video or [])
    clips = clips_of(video or [], fps, frames)
    if picture is not None:
        pictures.check(picture, len(images) + len(clips))
    done: list[Measured] = []
    if is_shipped(model):
        typer.echo(_WAIT, err=True)
    try:
        with console.progress(hidden=json) as bars:
            task = bars.add_task(f"loading {model}", total=None)
            loaded = load(model, trust_remote_code, device_map, dtype)
            bars.remove_task(task)
            own_prompt = read(loaded, text, images, clips=clips)
            if rounds > 1 and not json:
                typer.echo(f"Each method answers {rounds} times (--rounds).", err=True)
            _measure_all(loaded, own_prompt, chosen, max_new_tokens, rounds, bars, done)
    finally:
        rows = [measured.row for measured in done]
        if done and not json:  # also after an error, to show the rows before it
            clip_lines = [Text(clip_line(clip, loaded)) for clip in clips]
            console.show(
                _head(loaded, own_prompt, text, known), *clip_lines, "", rendered(rows, known)
            )
    if picture is not None:
        drawn_on, times = pictures_of(clips, images, own_prompt.inputs)
        pictures.save(picture, drawn_on, loaded, own_prompt, done, times)
    if json:
        _print_json(loaded, own_prompt, rows, known)
    else:
        first = video[0] if video else None
        typer.echo(f"\n{after_run(model, known is not None, picture is not None, first)}")


def _measure_all(
    loaded: Loaded,
    prompt: Prompt,
    chosen: Sequence[Policy],
    tokens: int,
    rounds: int,
    bars: Progress,
    done: list[Measured],
) -> None:
    """Append the measurement of each policy to ``done``; the full cache is the first.

    Rounds go over all policies in turn, so that other load on the machine slows all rows alike.
    """
    from foveate.cli.run.measure import add_round, against, measure, warm_up
    from foveate.cli.tables import short
    from foveate.compression.labels import budget_of, label

    task = bars.add_task("warming up", total=None)
    with console.quiet():
        warm_up(loaded, prompt)
    for turn in range(rounds):
        for number, policy in enumerate(chosen):
            name = f"{short(label(policy))} {budget_of(policy) or ''}".rstrip()
            progress = f"{number + 1} of {len(chosen)}, round {turn + 1} of {rounds}"
            bars.reset(task, description=f"{name} ({progress})", total=tokens)
            with console.quiet():
                measured = measure(loaded, prompt, policy, tokens, lambda: bars.advance(task))
            if turn:
                done[number] = add_round(done[number], measured)
            else:
                full = done[0].ids if done else measured.ids
                done.append(measured._replace(row=against(measured.row, measured.ids, full)))
    bars.remove_task(task)


def _print_json(
    loaded: Loaded, prompt: Prompt, rows: Sequence[ComparisonRow], known: Known | None
) -> None:
    from foveate.cli.tables import short

    settings = {
        "tokens": prompt.tokens,
        "visual_tokens": prompt.visual_tokens,
        "images": prompt.images,
        "videos": prompt.clips,
    }
    result: dict[str, Any] = {"model": loaded.name, "prompt": settings}
    if known is not None:
        result["evaluation"] = known.about()
    result["rows"] = [
        asdict(row)
        | {"method": short(row.method), "remaining": row.remaining and row.remaining._asdict()}
        | ({} if known is None else known.of(row))
        for row in rows
    ]
    console.print_json(result)


def _head(loaded: Loaded, prompt: Prompt, text: str, known: Known | None) -> Text:
    """Return the heading: the model, and the prompt's last line, which is usually the question."""
    visual = f", {prompt.visual_tokens:,} of them visual" if prompt.visual_tokens else ""
    last = text.strip().splitlines()[-1]
    last = last if len(last) <= _EXCERPT else f"...{last[-_EXCERPT:]}"
    right = f"\nThe right answer: {known.answer}" if known else ""
    return Text(
        f"{loaded.name} reads {prompt.tokens:,} tokens{visual}, and is asked: {last}{right}"
    )
