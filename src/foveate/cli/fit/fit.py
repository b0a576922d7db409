"""``foveate fit``: what fills the memory, and whether it is enough."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foveate.cli import console, options
from foveate.defaults import FRAMES, AttentionName
from foveate.errors import InvalidInput

if TYPE_CHECKING:
    from foveate.memory import Fit


def fit_into(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A directory with config.json.")],
    memory: Annotated[str, typer.Option(metavar="BYTES", help="Memory to fit into, e.g. 24GB.")],
    images: Annotated[int, typer.Option(metavar="N", min=0, help="Images of a prompt.")] = 0,
    size: Annotated[
        str | None, typer.Option(metavar="WxH", help="Of every image or frame: 1436x717.")
    ] = None,
    video: Annotated[
        str | None, typer.Option(metavar="TIME", help="How long a video is: 1h, 12min or 90s.")
    ] = None,
    fps: options.Fps = None,
    frames: options.Frames = None,
    text: Annotated[
        int, typer.Option(metavar="N", min=1, help="Tokens of the prompt that are not visual.")
    ] = 256,
    answer: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens of the answer.")] = 256,
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="Prompts at once.")] = 1,
    attn: Annotated[
        AttentionName | None,
        typer.Option(help="Attention implementation. [default: the model's]", show_default=False),
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens of the prompt that are read at once."),
    ] = None,
    policy: options.Specs = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="B", help="What each policy keeps: 20%, 256 or 64MB; repeatable."),
    ] = None,
    gpu_memory_utilization: Annotated[
        float, typer.Option(metavar="SHARE", help="Of the memory, for vLLM.")
    ] = 0.9,
    block_size: Annotated[int, typer.Option(metavar="N", help="Tokens of a block of vLLM.")] = 32,
    dtype: options.Dtype = "auto",
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw bars, as an image.")
    ] = None,
    trust_remote_code: options.TrustRemoteCode = False,
    json: console.Json = False,
) -> None:
    """Say what fills the memory, from a model's configuration: weights, tower, prefill, cache.

    No weights are loaded, and nothing is downloaded. The exit code is 1 if it does not fit.
    """
    from foveate.cli.fit import fit_table
    from foveate.cli.policies import policies
    from foveate.cli.run import pictures
    from foveate.data import files
    from foveate.memory import Engine, Request, fit, seconds_of, size_of
    from foveate.pictures.memory_bars import memory_picture

    if picture is not None:
        pictures.check_picture(picture)
    if size is not None and not images and video is None:
        raise InvalidInput(
            f"--size {size} is of images or frames, and there are none: add --images 1 or --video "
            "1h."
        )
    request = Request(
        images=images,
        frames=_frames(video, fps, frames),
        seconds=0.0 if video is None else seconds_of(video),
        size=None if size is None else size_of(size),
        text=text,
        answer=answer,
        batch=batch,
        attention=attn,
        chunk=chunk,
    )
    room = options.bytes_of("--memory", memory)
    engine = Engine(gpu_memory_utilization, block_size)
    chosen = policies(policy or ["recommended"], budget or [], model)[1:]
    with console.quiet(), console.progress(hidden=json) as bars:
        bars.add_task("reading the model's code", total=None)
        fitted = fit(
            model,
            request,
            room,
            policies=chosen,
            dtype=dtype,
            engine=engine,
            trust_remote_code=trust_remote_code,
        )
    if json:
        console.print_json(_facts(fitted))
    else:
        console.show(*fit_table.of(fitted, engine))
    if picture is not None:
        with files.replacing(picture) as part:
            memory_picture(fit_table.title(fitted), fit_table.bars(fitted), room).save(part)
        typer.echo(f"What fills the memory, drawn: {picture}", err=True)
    if fitted.fits is False:
        raise typer.Exit(1)


def _frames(video: str | None, fps: float | None, frames: int | None) -> int:
    """How many frames are taken; 0 without a video."""
    from foveate.data.clip import check_sampling
    from foveate.memory import frames_of, seconds_of

    if video is None:
        if fps is not None or frames is not None:
            raise InvalidInput("--fps and --frames are of a video: say how long it is, --video 1h.")
        return 0
    check_sampling(fps, frames)
    long = seconds_of(video)
    return frames_of(long, fps) if fps is not None else frames or FRAMES


def _facts(fitted: Fit) -> dict[str, Any]:
    traced = fitted.trace
    return {
        "model": fitted.model,
        "memory": fitted.memory,
        "fits": fitted.fits,
        "peak": fitted.peak,
        "request": asdict(fitted.request),
        "weights": None if fitted.weights is None else fitted.weights._asdict(),
        "prompt": traced and {"tokens": traced.tokens, "visual": traced.visual},
        "peaks": traced and {"tower": traced.tower, "prefill": traced.prefill, "step": traced.step},
        "logits": fitted.logits and dict(zip(("last", "all"), fitted.logits, strict=True)),
        "caches": [
            {**asdict(one), "cache": one.cache and one.cache._asdict()} for one in fitted.caches
        ],
        "changes": [asdict(one) for one in fitted.changes],
        "assumed": traced and traced.assumed,
        "vllm": fitted.pool and asdict(fitted.pool),
        "unknown": fitted.unknown,
    }
