"""The papers' figures for the prompts of an evaluation, as SVG charts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from foveate.compression.labels import named
from foveate.pictures.escaping import short, without_folders
from foveate.pictures.strips import PALETTE
from foveate_lab.eval.summary import FULL, Rows, bytes_shares
from foveate_lab.report.charts import MARKERS, Entry, axes, brief, entry, style, svg

SHADES = "cividis"
LETTERS = 92  # total letters of titles in one row
ERRORS, KEPT_KEYS = "Error of the features", "Kept keys among all keys"
WEIGHTS = "Weights of self- and cross-attention"


class Figure(NamedTuple):
    """Chart with its title, its caption, and a key of its lines if the chart has none."""

    title: str
    svg: str
    caption: str
    key: Sequence[Entry] = ()


def figures(rows: Rows, titles: Collection[str] | None = None) -> list[Figure]:
    """Draw every figure that one task's rows have numbers for, or those of ``titles``.

    Curves over layers are means over prompts.
    """

    def is_requested(title: str) -> bool:
        return titles is None or title in titles

    prompts = [row["analyses"] for row in rows if row.get("analyses")]
    drawn = list(_of_errors(rows)) if is_requested(ERRORS) else []
    if prompts:
        keys = _of_keys(prompts[0]["keys"], rows) if is_requested(KEPT_KEYS) else ()
        drawn = [*_of_prompts(prompts, is_requested), *drawn, *keys]
    return drawn


def _of_prompts(
    prompts: Sequence[Mapping[str, Any]], is_requested: Callable[[str], bool]
) -> Iterator[Figure]:
    for name, draw, title, caption in CHARTS:
        having = [np.array(prompt[name], dtype=float) for prompt in prompts if name in prompt]
        if having and is_requested(title):
            yield Figure(title, draw(having), caption)
    if "within" in prompts[0] and is_requested(WEIGHTS):
        yield Figure(
            WEIGHTS,
            _distributions(prompts),
            "Attention weights of the last queries to tokens of their own kind (text or "
            "image) and of the other, all layers (CSP, Fig. 1 b).",
        )


def _heads(counts: Sequence[Any]) -> str:
    figure, axis = axes()
    mean = np.mean(counts, axis=0)
    drawn = axis.imshow(
        mean.T, cmap=SHADES, vmin=0, vmax=1, aspect="auto", origin="lower", interpolation="nearest"
    )
    axis.set(xlabel="layer", ylabel="KV head", yticks=range(mean.shape[1]))
    axis.grid(visible=False)
    figure.colorbar(drawn, label="mean cosine of its keys")
    return svg(figure)


def _lorenz(curves: Sequence[Any]) -> str:
    figure, axis = axes()
    mean = np.mean(curves, axis=0)
    x = np.linspace(0, 100, mean.shape[1])
    shades = _shades(len(mean))
    for layer, curve in enumerate(mean):
        label = f"layer {layer}" if layer in (0, len(mean) // 2, len(mean) - 1) else None
        axis.plot(x, 100 * curve, color=shades[layer], linewidth=1, label=label)
    axis.set(
        xlabel="most important tokens, %",
        ylabel="attention that they hold, %",
        xlim=(0, 100),
        ylim=(0, 103),
    )
    axis.legend(frameon=False, fontsize=8)
    return svg(figure)


def _curve(ylabel: str, *names: str) -> Callable[[Sequence[Any]], str]:
    """Return a function that draws one or several numbers per layer."""

    def draw(curves: Sequence[Any]) -> str:
        figure, axis = axes()
        mean = np.mean(curves, axis=0)
        for index, values in enumerate(np.atleast_2d(mean.T)):
            label = names[index] if names else None
            axis.plot(values, marker=MARKERS[index], markersize=4, linewidth=1.4, label=label)
        axis.set(xlabel="layer", ylabel=ylabel)
        axis.set_ylim(bottom=0)
        if names:
            axis.legend(frameon=False, fontsize=8)
        return svg(figure)

    return draw


def _distributions(prompts: Sequence[Mapping[str, Any]]) -> str:
    figure, axis = axes()
    for name, label in (("within", "self"), ("across", "cross")):
        mean = np.nanmean([np.array(prompt[name], dtype=float) for prompt in prompts], axis=(0, 1))
        edges = np.linspace(-8, 0, len(mean) + 1)
        axis.stairs(100 * mean, edges, label=label, fill=True, alpha=0.45)
    axis.set(xlabel="attention weight, power of ten", ylabel="share of the weights, %")
    axis.legend(frameon=False, fontsize=8)
    return svg(figure)


CHARTS: tuple[tuple[str, Callable[[Sequence[Any]], str], str, str], ...] = (
    (
        "redundancy",
        _heads,
        "Redundancy of keys",
        "Bright heads hold keys that are alike, and lose little if one stands for several (MixKV, "
        "Fig. 2).",
    ),
    (
        "lorenz",
        _lorenz,
        "How concentrated attention is",
        "The steeper a layer's curve rises, the fewer tokens it needs (PrefixKV, Fig. 2).",
    ),
    (
        "gini",
        _curve("Gini coefficient"),
        "Gini coefficient of each layer",
        "0: all tokens matter alike; 1: one holds everything (PrefixKV, Fig. 4).",
    ),
    (
        "divergence",
        _curve("Jensen-Shannon divergence, bits"),
        "Self- against cross-attention",
        "How differently queries weigh tokens of their own kind and of the other (CSP, Fig. 1 c).",
    ),
    (
        "ncar",
        _curve("normalised cross attention rate"),
        "Fusion of the modalities",
        "Attention that images get from the last queries, over an even share; DAVID keeps the "
        "modalities apart until it settles (eq. 6).",
    ),
    (
        "received",
        _curve("attention received, even shares", "a text token", "an image token"),
        "What text and images receive",
        "From all queries, mean over heads; 1 is what each token would get if attention were even "
        "(LOOK-M, Fig. 2). The first token is left out.",
    ),
)


def _of_errors(rows: Rows) -> Iterator[Figure]:
    """Draw PrefixKV's Fig. 5 at the smallest budget of each method."""
    by_spec: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["spec"] != FULL and _all_finite(row.get("feature_error")) and bytes_shares([row]):
            by_spec.setdefault(row["spec"], []).append(row)
    shares = {spec: float(np.mean(bytes_shares(spec_rows))) for spec, spec_rows in by_spec.items()}
    if not by_spec:
        return
    figure, axis = axes()
    smallest = _smallest(shares)
    key = []
    for index, (name, spec) in enumerate(
        zip(brief(list(smallest)), smallest.values(), strict=True)
    ):
        errors, share = (
            np.mean([row["feature_error"] for row in by_spec[spec]], axis=0),
            shares[spec],
        )
        axis.plot(errors, markersize=3, linewidth=1.2, **style(index))
        key.append(entry(f"{name}, {100 * share:.0f} % of the bytes", style(index)))
    axis.set(xlabel="layer", ylabel="mean absolute error of features")
    axis.set_ylim(bottom=0)
    yield Figure(
        ERRORS,
        svg(figure),
        "Hidden states against those with the full cache, at the smallest budget "
        "(PrefixKV, Fig. 5).",
        key,
    )


def _of_keys(keys: Sequence[Sequence[float]], rows: Rows) -> Iterator[Figure]:
    """Draw MixKV's Fig. 3: the keys that each method keeps of the first prompt, smallest budget."""
    points = np.array(keys)
    first = next(row["sample"] for row in rows if row.get("analyses"))
    kept = {
        row["spec"]: row["kept_places"]
        for row in rows
        if row["sample"] == first and row.get("kept_places")
    }
    specs = list(_smallest({spec: len(indices) for spec, indices in kept.items()}).values())
    if not specs:
        return
    columns = min(4, len(specs))
    figure, grid = axes(rows=-(-len(specs) // columns), columns=columns)
    panels = np.atleast_1d(grid).ravel()
    for axis, spec in zip(panels, specs, strict=False):
        kept_indices = [index for index in kept[spec] if index < len(points)]
        axis.scatter(*points.T, s=4, color=PALETTE[7], alpha=0.75, linewidths=0)
        axis.scatter(*points[kept_indices].T, s=6, color=PALETTE[0], linewidths=0)
        axis.set(xticks=[], yticks=[])
        axis.set_title(short(without_folders(spec), LETTERS // columns), fontsize=7)
    for axis in panels[len(specs) :]:
        axis.set_visible(False)
    caption = (
        "One head in the middle layer, one prompt, two principal components: grey is every key, "
        "blue what is kept at the smallest budget (MixKV, Fig. 3)."
    )
    yield Figure(KEPT_KEYS, svg(figure), caption)


def _all_finite(numbers: Sequence[float | None] | None) -> bool:
    """Check that there are numbers and all are finite."""
    return bool(numbers) and bool(np.isfinite(np.array(numbers, dtype=float)).all())


def _smallest(sizes: Mapping[str, float | int]) -> dict[str, str]:
    """Return the spec of each method at its smallest budget; ``sizes`` has all specs."""
    smallest: dict[str, str] = {}
    for spec, size in sizes.items():
        name = named(spec).method
        if name not in smallest or size < sizes[smallest[name]]:
            smallest[name] = spec
    return smallest


def _shades(count: int) -> Any:
    """Interpolate between the first two colours, both visible on black and on white."""
    from matplotlib.colors import to_rgb

    first, last = (np.array(to_rgb(colour)) for colour in PALETTE[:2])
    return first + np.linspace(0, 1, count)[:, None] * (last - first)
