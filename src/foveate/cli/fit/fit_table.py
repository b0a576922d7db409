"""The tables of ``foveate fit``, in 80 columns. GB are 10^9 bytes."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from foveate.cli import console
from foveate.cli.policies import short
from foveate.cli.run.rows import broken
from foveate.memory import Engine, Fit

_CLOSE = (0, 1, 0, 0)
_WIDE = 80
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
    table = console.table("Part", "GB", "What it is", padding=_CLOSE, width=_WIDE)
    table.columns[1].justify = "right"
    table.columns[0].no_wrap = table.columns[1].no_wrap = True
    for name, size, said in _rows(fitted):
        table.add_row(name, "unknown" if size is None else gb(size), said)
    return table


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
    table = console.table("KV cache under", *_HELD, padding=_CLOSE)
    for column in table.columns[1:]:
        column.justify, column.no_wrap = "right", True
    for one in fitted.caches:
        name = Text(broken(short(one.policy), 24))
        if one.cache is None or one.peak is None:
            table.add_row(name, "unknown")
            continue
        held = one.cache
        sizes = map(gb, (held.reading, held.prompt, held.answer, one.peak))
        table.add_row(name, f"{held.kept:,}", *sizes, "yes" if one.peak <= fitted.memory else "no")
    return table


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
    table = console.table("To change first", "Saves\nGB", "Peak\nGB", "Try it with", padding=_CLOSE)
    for column in table.columns[1:3]:
        column.justify, column.no_wrap = "right", True
    for one in fitted.changes:
        option = Text(broken(short(one.option), 24))
        table.add_row(Text(short(one.what)), gb(one.saves), gb(one.peak), option)
    return table


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
