"""Icon buttons to be found on screenshots of matplotlib windows.

The page is built like matplotlib's WebAgg backend does it, from files that come with matplotlib:
style sheets, icons, its toolbar, and figures that it draws. The toolbar has few icons; their
positions, the number of figures and the figures' contents vary.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from functools import cache
from html import escape
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

from foveate.errors import MissingPackage
from foveate.prompts.sample import Sample
from foveate_demo.scenes.words import FIELDS
from foveate_lab.eval.benchmarks.screenspot import inside
from foveate_lab.eval.browser import window
from foveate_lab.eval.task_registry import task
from foveate_lab.eval.tasks.screen import SIZE, Shot, chosen, screen_samples, targets

FRAME = 110  # pixels of height for title, toolbar and margins
STYLES = ("page.css", "boilerplate.css", "fbm.css", "mpl.css")


@task("gui_icon", metric=inside, longest=32, divisible=False)
def gui_icon(count: int, seed: int) -> Iterator[Sample]:
    """Find a toolbar button by its icon, with one or two figures (needs Chromium, matplotlib)."""
    toolbar(1)  # fail before Chromium starts if matplotlib is missing
    with window("gui_icon", SIZE) as page:
        shots = [_shot(page, Random(f"gui_icon/{seed}/{number}")) for number in range(count)]
    yield from screen_samples(shots)  # Chromium has ended


def _shot(page: Any, r: Random) -> Shot:
    figures = r.randint(1, 2)
    page.set_content(_page(r, figures))
    kinds = {f"Figure {n}": f"#figure-{n} button" for n in range(1, figures + 1)}
    target = chosen(r, targets(page, kinds))
    where = f" in {target.kind}" if figures > 1 else ""
    instruction = f"{target.text}{where}"
    return Shot(page.screenshot(), instruction, target._replace(kind="icon"), {})


def _page(r: Random, figures: int) -> str:
    """Place one window anywhere, or two side by side or stacked."""
    beside = figures == 2 and r.random() < 0.5
    windows = []
    for number in range(1, figures + 1):
        wide = r.randint(350, 370) if beside else r.randint(360, 720)
        high = r.randint(160, 430) if beside or figures == 1 else r.randint(120, 180)
        left = r.randint(2, 8 if beside else SIZE[0] - wide - 20)
        above = r.randint(2, 8 if figures == 2 else SIZE[1] - high - FRAME)
        windows.append(_window(r, number, (wide, high), f"margin: {above}px 2px 2px {left}px"))
    inner = ("" if beside else "<br>").join(windows)
    head = f"<meta charset=utf-8><style>{_style()}</style>"
    return f"<!doctype html><html lang=en>{head}<body style='margin: 0'>{inner}"


def _window(r: Random, number: int, size: tuple[int, int], style: str) -> str:
    """Build a figure like ``web_backend/js/mpl.js``: title, image, toolbar."""
    drawn = b64encode(_figure(r, *size)).decode()
    bar = "ui-dialog-titlebar ui-widget-header ui-corner-all ui-helper-clearfix"
    return (
        f"<div id='figure-{number}' style='display: inline-block; {style}'>"
        f"<div class='{bar}'><div class='ui-dialog-title' style='text-align: center; padding: 3px'>"
        f"Figure {number}</div></div>"
        f"<img style='display: block' src='data:image/png;base64,{drawn}'>{toolbar(number)}</div>"
    )


@cache
def toolbar(figure: int) -> str:
    """Build the button groups of a figure's window. An icon's alternative text describes its
    button, as in the original.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    try:
        from matplotlib.backend_bases import NavigationToolbar2
    except ImportError as error:
        raise MissingPackage("gui_icon", "matplotlib", "screens") from error
    groups = [""]
    for name, tooltip, image, _ in NavigationToolbar2.toolitems:
        if not (name and tooltip and image):  # a gap
            groups.append("")
            continue
        label = escape(f"{name}: {tooltip.splitlines()[0]}", quote=True)
        groups[-1] += (
            f"<button class='mpl-widget'><img alt='{label}' src='{_icon(image)}'></button>"
        )
    inner = "".join(f"<div class='mpl-button-group'>{group}</div>" for group in groups)
    return f"<div class='mpl-toolbar'>{inner}</div>"


def _icon(name: str) -> str:
    import matplotlib

    png = Path(matplotlib.get_data_path(), "images", f"{name}.png").read_bytes()
    return f"data:image/png;base64,{b64encode(png).decode()}"


def _style() -> str:
    import matplotlib.backends

    css = Path(matplotlib.backends.__path__[0], "web_backend", "css")
    return "\n".join((css / name).read_text(encoding="utf-8") for name in STYLES)


def _figure(r: Random, wide: int, high: int) -> bytes:
    """Draw a chart of random numbers as PNG, in matplotlib's default style."""
    import matplotlib.style
    from matplotlib.figure import Figure

    values = [r.uniform(1, 9) for _ in range(r.randint(4, 9))]
    with matplotlib.style.context("default"):
        figure = Figure(figsize=(wide / 100, high / 100), dpi=100, layout="constrained")
        axis = figure.subplots()
        kind = r.choice((axis.plot, axis.bar, axis.scatter, axis.step))
        kind(range(len(values)), values, color=f"C{r.randrange(10)}")
        axis.set(title=r.choice(sorted(FIELDS)), ylabel=r.choice(sorted(FIELDS)))
        out = BytesIO()
        figure.savefig(out, format="png")
    return out.getvalue()
