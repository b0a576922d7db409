"""The tables of ``foveate fit``, in 80 columns. GB are 10^9 bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from foveate.cli import tables
from foveate.cli.tables import short
from foveate.memory import Engine, Fit, Under

_HELD = ("Tokens\nkept", "Reading\nGB", "Prompt\nGB", "Answer\nGB", "Peak of\nall, GB", "It\nfits")


def of(fitted: Fit, engine: Engine) -> list[RenderableType]:
    """Everything that was found, part by part."""
    parts: list[RenderableType] = [Text(title(fitted)), "", _parts(fitted), "", _verdict(fitted)]
    if fitted.caches:
        parts += ["", _caches(fitted), *_notes(fitted)]
    if fitted.changes:
        parts += ["", _changes(fitted)]
    parts += _pool(fitted, engine)
    if fitted.trace is not None and fitted.trace.assumed:
        parts.append(Text(f"\nTaken as given: {fitted.trace.assumed}.", "yellow"))
    for part, why in fitted.unknown.items():
        parts.append(Text(f"\nUnknown, {part}: {why}.", "yellow"))
    return parts


def title(fitted: Fit) -> str:
    """The model, and what it is asked."""
    request = fitted.request
    size = "x".join(map(str, request.size or ()))
    shown = [
        f"{count} {word}{'s' * (count > 1)} of {size}"
        for count, word in ((request.images, "image"), (request.frames, "frame"))
        if count
    ]
    rows = [f"{request.batch} prompts at once"] if request.batch > 1 else []
    request_line = ", ".join([*rows, *shown, f"{request.text:,} tokens of text"])
    return f"{fitted.model}: {request_line}, an answer of {request.answer:,}"


def bars(fitted: Fit) -> list[tuple[str, list[tuple[str, int]]]]:
    """What is held at each peak, piece by piece, with the full cache; then under each policy."""
    if fitted.weights is None or fitted.trace is None:
        return []
    weights, traced = ("weights", fitted.weights.bytes), fitted.trace
    rows = [("seeing", [weights, ("vision tower", traced.tower)])] if traced.tower else []
    for one in fitted.caches:
        if one.cache is not None:
            name = "" if one.policy == "full" else f", {short(one.policy)}"
            pieces = [("KV cache", one.cache.reading), ("prefill", traced.activations)]
            rows.append((f"reading{name}", [weights, *pieces]))
            step = traced.step - traced.cache
            pieces = [("KV cache", one.cache.answer), ("decoding", step)]
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
    held, traced = fitted.weights, fitted.trace
    numbers = "" if held is None else f"{held.parameters / 1e9:,.2f} billion numbers, {held.held}"
    yield "weights", None if held is None else held.bytes, numbers
    if fitted.request.shown:
        tower = None if traced is None else traced.tower
        yield "vision tower", tower, "at its peak, pixels with it"
    if traced is None:
        yield from ((name, None, "") for name in ("prefill", "KV cache", "answer"))
        return
    yield "prefill", traced.activations, f"activations of the decoder at its peak, {_read(fitted)}"
    visual = f", {traced.visual:,} of them visual" if traced.visual else ""
    yield "KV cache", traced.cache, f"{traced.tokens:,} tokens a prompt{visual}"
    whole = fitted.caches[0].cache
    if whole is not None:
        yield "answer", whole.answer - whole.prompt, "what the cache grows by"
    if fitted.logits is not None:
        last, every = fitted.logits
        yield "logits", last, f"of the last token; of all, in a plain forward, {gb(every)}"


def _read(fitted: Fit) -> str:
    request = fitted.request
    how = request.attention or "the model's own attention"
    chunk = "all tokens at once" if request.chunk is None else f"{request.chunk:,} tokens at once"
    return f"{how}, {chunk}"


def _verdict(fitted: Fit) -> Text:
    if fitted.peak is None or fitted.trace is None or fitted.weights is None:
        return Text("Whether it fits is unknown.", "yellow")
    traced, weights, whole = fitted.trace, fitted.weights.bytes, fitted.caches[0].cache
    peaks = {"seeing": traced.tower, "reading": traced.prefill, "answering": _answering(fitted)}
    peaks_line = ", ".join(f"{name} {gb(weights + size)}" for name, size in peaks.items() if size)
    word, color = ("It fits", "green") if fitted.fits else ("It does not fit", "red")
    line = f"{word}: {gb(fitted.peak)} of {gb(fitted.memory)} GB at the peak ({peaks_line})."
    return Text(line, color) if whole else Text(line)


def _answering(fitted: Fit) -> int:
    traced, whole = fitted.trace, fitted.caches[0].cache
    return 0 if traced is None or whole is None else traced.step - traced.cache + whole.answer


def _caches(fitted: Fit) -> RenderableType:
    figures = (tables.number(title, i, none="") for i, title in enumerate(_HELD, start=1))
    rows = (_figures(one, fitted.memory) for one in fitted.caches)
    name = tables.column("KV cache under", lambda row: tables.broken(short(row[0]), 24))
    return tables.table(rows, name, *figures, padding=tables.CLOSE)


def _figures(one: Under, memory: int) -> Sequence[str]:
    held, peak = one.cache, one.peak
    if held is None or peak is None:
        return (one.policy, "unknown", *("" for _ in _HELD[1:]))
    sizes = map(gb, (held.reading, held.prompt, held.answer, peak))
    return (one.policy, f"{held.kept:,}", *sizes, "yes" if peak <= memory else "no")


def _notes(fitted: Fit) -> Iterator[Text]:
    """Why a policy is unknown, and what those that leave visual tokens uncomputed make of the
    prefill.
    """
    for one in fitted.caches:
        if one.cache is None or one.peak is None:
            yield Text(f"  {short(one.policy)}, unknown: {one.unknown or 'the weights'}", "yellow")
        elif one.prefill is not None and fitted.trace is not None:
            size, whole = gb(one.prefill.activations), gb(fitted.trace.activations)
            share = f"{one.prefill.flops:.0%} of the decoder's FLOPs"
            yield Text(f"  {short(one.policy)}: prefill {size} instead of {whole} GB, {share}")


def _changes(fitted: Fit) -> RenderableType:
    return tables.table(
        fitted.changes,
        tables.column("To change first", lambda one: short(one.what)),
        tables.number("Saves\nGB", lambda one: gb(one.saves)),
        tables.number("Peak\nGB", lambda one: gb(one.peak)),
        tables.column("Try it with", lambda one: tables.broken(short(one.option), 24)),
        padding=tables.CLOSE,
    )


def _pool(fitted: Fit, engine: Engine) -> list[RenderableType]:
    pool = fitted.pool
    if pool is None:
        return []
    lines = [
        f"\nvLLM, --gpu-memory-utilization {engine.utilisation:g}, blocks of {engine.block}: "
        f"a pool of at most {gb(pool.bytes)} GB, {pool.tokens:,} tokens. What its profiling run "
        "takes at the start is unknown, and goes off. Such requests at once:"
    ]
    for one in pool.served:
        most, why = one.requests, "not served (--json says why)"
        said = why if most is None else f"at most {most:,}"
        lines.append(f"  {short(one.policy)}: {said}")
    return [Text("\n".join(lines))]


def gb(size: int) -> str:
    """In GB, with as many digits as say something."""
    value = size / 1e9
    return f"{value:,.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.1 else f"{value:.4f}"
