"""``foveate fit``: predicted memory of a model and a prompt. GB are 10^9 bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from foveate.cli import console, options, tables
from foveate.cli.options import flag, option
from foveate.cli.tables import short
from foveate.defaults import FRAMES, AttentionName
from foveate.errors import InvalidInput

if TYPE_CHECKING:
    from foveate.memory import Engine, Fit, Under

_CACHE_COLUMNS = (
    "Tokens\nkept",
    "Reading\nGB",
    "Prompt\nGB",
    "Answer\nGB",
    "Peak of\nall, GB",
    "It\nfits",
)


def fit(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Model directory with config.json, e.g. ./model.")
    ],
    memory: Annotated[
        str | None, option("BYTES", "Memory to fit into, e.g. 24GB. [required]", show_default=False)
    ] = None,
    images: Annotated[int, option("N", "Number of images in a prompt, e.g. 2.", min=0)] = 0,
    size: Annotated[
        str | None, option("WxH", "Size of every image or frame in pixels, e.g. 1436x717.")
    ] = None,
    video: Annotated[
        str | None, option("TIME", "Length of a video, e.g. 1h, 12min or 90s.")
    ] = None,
    fps: options.Fps = None,
    frames: options.Frames = None,
    text: Annotated[int, option("N", "Number of text tokens in a prompt, e.g. 512.", min=1)] = 256,
    answer: Annotated[int, option("N", "Length of the answer in tokens, e.g. 512.", min=1)] = 256,
    batch: Annotated[int, option("N", "Number of prompts in a batch, e.g. 4.", min=1)] = 1,
    attn: Annotated[
        AttentionName | None,
        flag("--attn", "Attention implementation, e.g. sdpa. [default: the model's]"),
    ] = None,
    chunk: Annotated[
        int | None,
        option(
            "N",
            "Chunk size of the prefill in tokens, e.g. 4096. [default: the whole prompt]",
            min=1,
        ),
    ] = None,
    policy: options.Specs = None,
    budget: Annotated[
        list[str] | None,
        option("B", "Budget of each policy, e.g. 20%, 256 (tokens) or 64MB; repeatable."),
    ] = None,
    gpu_memory_utilization: Annotated[
        float, option("SHARE", "Share of the memory for vLLM, e.g. 0.85.")
    ] = 0.9,
    block_size: Annotated[int, option("N", "Block size of vLLM in tokens, e.g. 16.")] = 32,
    dtype: options.Dtype = "auto",
    picture: Annotated[
        Path | None, option("FILE", "Image file for a bar chart of the memory, e.g. memory.png.")
    ] = None,
    trust_remote_code: options.TrustRemoteCode = False,
    json: console.Json = False,
) -> None:
    """Predict the memory of a model and a prompt: weights, vision tower, prefill, KV cache.

    No weights are loaded, and nothing is downloaded. The exit code is 1 if it does not fit.
    """
    from foveate.cli.policies import policies
    from foveate.cli.run import pictures
    from foveate.data import files
    from foveate.memory import Engine, Request, seconds_of, size_of
    from foveate.memory import fit as fit_into
    from foveate.pictures.memory_bars import memory_picture

    if picture is not None:
        pictures.check_picture(picture)
    if size is not None and not images and video is None:
        raise InvalidInput(f"--size {size} needs images or a video: add --images 1 or --video 1h.")
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
    if memory is None:
        raise InvalidInput(
            f"--memory is missing: give a size, e.g. foveate fit {model} --memory 24GB."
        )
    limit = options.bytes_of("--memory", memory)
    engine = Engine(gpu_memory_utilization, block_size)
    chosen = policies(policy or ["recommended"], budget or [], model)[1:]
    with console.quiet(), console.progress(hidden=json) as bars:
        bars.add_task("reading the model's code", total=None)
        fitted = fit_into(
            model,
            request,
            limit,
            policies=chosen,
            dtype=dtype,
            engine=engine,
            trust_remote_code=trust_remote_code,
        )
    if json:
        console.print_json(_facts(fitted))
    else:
        console.show(*_tables(fitted, engine))
    if picture is not None:
        with files.replacing(picture) as part:
            memory_picture(_title(fitted), _pieces(fitted), limit).save(part)
        typer.echo(f"Chart of the memory: {picture}", err=True)
    if fitted.fits is False:
        raise typer.Exit(1)


def _frames(video: str | None, fps: float | None, frames: int | None) -> int:
    """Return the number of frames sampled from the video; 0 without one."""
    from foveate.data.clip import check_sampling
    from foveate.memory import frames_of, seconds_of

    if video is None:
        if fps is not None or frames is not None:
            raise InvalidInput("--fps and --frames need a video: add its length, e.g. --video 1h.")
        return 0
    check_sampling(fps, frames)
    seconds = seconds_of(video)
    return frames_of(seconds, fps) if fps is not None else frames or FRAMES


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
            {**asdict(usage), "cache": usage.cache and usage.cache._asdict()}
            for usage in fitted.caches
        ],
        "changes": [asdict(change) for change in fitted.changes],
        "assumed": traced and traced.assumed,
        "vllm": fitted.pool and asdict(fitted.pool),
        "unknown": fitted.unknown,
    }


def _tables(fitted: Fit, engine: Engine) -> list[RenderableType]:
    """Return the report: parts, verdict, caches by policy, changes, vLLM's pool, unknown parts."""
    parts: list[RenderableType] = [Text(_title(fitted)), "", _parts(fitted), "", _verdict(fitted)]
    if fitted.caches:
        parts += ["", _caches(fitted), *_notes(fitted)]
    if fitted.changes:
        parts += ["", _changes(fitted)]
    parts += _pool(fitted, engine)
    if fitted.trace is not None and fitted.trace.assumed:
        parts.append(Text(f"\nAssumed: {fitted.trace.assumed}.", "yellow"))
    for part, reason in fitted.unknown.items():
        parts.append(Text(f"\nUnknown, {part}: {reason}.", "yellow"))
    return parts


def _title(fitted: Fit) -> str:
    """Return the title: the model and the request."""
    request = fitted.request
    size = "x".join(map(str, request.size or ()))
    visual = [
        f"{count} {word}{'s' * (count > 1)} of {size}"
        for count, word in ((request.images, "image"), (request.frames, "frame"))
        if count
    ]
    rows = [f"{request.batch} prompts at once"] if request.batch > 1 else []
    request_line = ", ".join([*rows, *visual, f"{request.text:,} tokens of text"])
    return f"{fitted.model}: {request_line}, an answer of {request.answer:,}"


def _pieces(fitted: Fit) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return the pieces of memory at each peak, with the full cache and under each policy."""
    if fitted.weights is None or fitted.trace is None:
        return []
    weights, traced = ("weights", fitted.weights.bytes), fitted.trace
    rows = [("seeing", [weights, ("vision tower", traced.tower)])] if traced.tower else []
    for usage in fitted.caches:
        if usage.cache is not None:
            name = "" if usage.policy == "full" else f", {short(usage.policy)}"
            pieces = [("KV cache", usage.cache.reading), ("prefill", traced.activations)]
            rows.append((f"reading{name}", [weights, *pieces]))
            step = traced.step - traced.cache
            pieces = [("KV cache", usage.cache.answer), ("decoding", step)]
            rows.append((f"answering{name}", [weights, *pieces]))
    return rows


def _parts(fitted: Fit) -> RenderableType:
    return tables.table(
        _rows(fitted),
        tables.column("Part", 0, no_wrap=True),
        tables.number("GB", lambda row: None if row[1] is None else gb(row[1]), none="unknown"),
        "What it is",
        padding=tables.CLOSE,
        width=80,
    )


def _rows(fitted: Fit) -> Iterator[tuple[str, int | None, str]]:
    weights, traced = fitted.weights, fitted.trace
    numbers = (
        ""
        if weights is None
        else f"{weights.parameters / 1e9:,.2f} billion numbers, {weights.held}"
    )
    yield "weights", None if weights is None else weights.bytes, numbers
    if fitted.request.image_count:
        tower = None if traced is None else traced.tower
        yield "vision tower", tower, "at its peak, pixels with it"
    if traced is None:
        yield from ((name, None, "") for name in ("prefill", "KV cache", "answer"))
        return
    attention = fitted.request.attention or "the model's own attention"
    chunk = f"{fitted.request.chunk:,}" if fitted.request.chunk else "all"
    activations = f"activations of the decoder at its peak, {attention}, {chunk} tokens at once"
    yield "prefill", traced.activations, activations
    visual = f", {traced.visual:,} of them visual" if traced.visual else ""
    yield "KV cache", traced.cache, f"{traced.tokens:,} tokens a prompt{visual}"
    full = fitted.caches[0].cache
    if full is not None:
        yield "answer", full.answer - full.prompt, "growth of the cache"
    if fitted.logits is not None:
        last, every = fitted.logits
        yield "logits", last, f"of the last token; of all tokens, in a plain forward, {gb(every)}"


def _verdict(fitted: Fit) -> Text:
    traced, full = fitted.trace, fitted.caches[0].cache if fitted.caches else None
    if fitted.peak is None or fitted.weights is None or traced is None or full is None:
        return Text("Whether it fits is unknown.", "yellow")
    answering = traced.step - traced.cache + full.answer
    peaks = {"seeing": traced.tower, "reading": traced.prefill, "answering": answering}
    weights = fitted.weights.bytes
    peaks_line = ", ".join(f"{name} {gb(weights + size)}" for name, size in peaks.items() if size)
    word, color = ("It fits", "green") if fitted.fits else ("It does not fit", "red")
    line = f"{word}: {gb(fitted.peak)} of {gb(fitted.memory)} GB at the peak ({peaks_line})."
    return Text(line, color)


def _caches(fitted: Fit) -> RenderableType:
    figures = (tables.number(title, i, none="") for i, title in enumerate(_CACHE_COLUMNS, start=1))
    rows = (_figures(usage, fitted.memory) for usage in fitted.caches)
    name = tables.column("KV cache under", lambda row: tables.broken(short(row[0]), 24))
    return tables.table(rows, name, *figures, padding=tables.CLOSE)


def _figures(usage: Under, memory: int) -> Sequence[str]:
    cache, peak = usage.cache, usage.peak
    if cache is None or peak is None:
        return (usage.policy, "unknown", *("" for _ in _CACHE_COLUMNS[1:]))
    sizes = map(gb, (cache.reading, cache.prompt, cache.answer, peak))
    return (usage.policy, f"{cache.kept:,}", *sizes, "yes" if peak <= memory else "no")


def _notes(fitted: Fit) -> Iterator[Text]:
    """Return why a policy is unknown, and how pruning of visual tokens shrinks the prefill."""
    for usage in fitted.caches:
        if usage.cache is None or usage.peak is None:
            yield Text(
                f"  {short(usage.policy)}, unknown: {usage.unknown or 'the weights'}", "yellow"
            )
        elif usage.prefill is not None and fitted.trace is not None:
            size, full_size = gb(usage.prefill.activations), gb(fitted.trace.activations)
            share = f"{usage.prefill.flops:.0%} of the decoder's FLOPs"
            yield Text(
                f"  {short(usage.policy)}: prefill {size} instead of {full_size} GB, {share}"
            )


def _changes(fitted: Fit) -> RenderableType:
    return tables.table(
        fitted.changes,
        tables.column("To change first", lambda change: short(change.what)),
        tables.number("Saves\nGB", lambda change: gb(change.saves)),
        tables.number("Peak\nGB", lambda change: gb(change.peak)),
        tables.column("Try it with", lambda change: tables.broken(short(change.option), 24)),
        padding=tables.CLOSE,
    )


def _pool(fitted: Fit, engine: Engine) -> list[RenderableType]:
    pool = fitted.pool
    if pool is None:
        return []
    lines = [
        f"\nvLLM, --gpu-memory-utilization {engine.utilisation:g}, blocks of {engine.block}: "
        f"a pool of at most {gb(pool.bytes)} GB, {pool.tokens:,} tokens. The unknown memory of its "
        "profiling run is not subtracted. Concurrent requests:"
    ]
    for usage in pool.served:
        limit, reason = usage.requests, "not served (--json says why)"
        text = reason if limit is None else f"at most {limit:,}"
        lines.append(f"  {short(usage.policy)}: {text}")
    return [Text("\n".join(lines))]


def gb(size: int) -> str:
    """Format bytes in GB with about three significant digits."""
    value = size / 1e9
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"
