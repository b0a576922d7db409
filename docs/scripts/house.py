"""docs/house.svg and its facts in docs/design.md: packages by floor, their size, and their imports.

Floors are the layers that import-linter checks (pyproject.toml); imports are read from the source,
those inside functions and for type checkers included.
"""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
from cells import BLUE, GREY, label, svg

ROOT = Path(__file__).parents[2]
HOUSES = ("foveate_lab", "foveate_demo", "foveate")  # from the top down
EXTERNAL = ("PIL", "numpy", "torch", "transformers", "vllm")
RED = "#d62728"
ROW, COLUMN = 18.0, 14.0
BETWEEN_ROWS, BETWEEN_COLUMNS = 24.0, 6.0
TOP, LEFT, MATRIX = 96.0, 2.0, 196.0  # MATRIX: the left edge of the dots
PER_LINE = 0.026  # pixels of a bar for one line of code
SKIPPED = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def floors() -> dict[str, list[list[str]]]:
    """Return the packages on each floor, from the top down, by top-level package."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = {
        contract["containers"][0]: contract["layers"]
        for contract in config["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    }
    split = {
        house: [[f"{house}.{name.strip(' ()')}" for name in row.split("|")] for row in rows]
        for house, rows in layers.items()
    }
    return {house: split.get(house, [[house]]) for house in HOUSES}


@cache
def packages() -> list[str]:
    """Return every package, from the top floor down."""
    return [name for rows in floors().values() for row in rows for name in row]


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """Return the imports of each module; those of other distributions as their top package."""
    graph = grimp.build_graph(*HOUSES, include_external_packages=True, cache_dir=None)
    own = (name for name in graph.modules if name.startswith("foveate"))
    return {name: frozenset(graph.find_modules_directly_imported_by(name)) for name in own}


@cache
def importing() -> Mapping[tuple[str, str], int]:
    """Count the modules of one package that import another, by both names."""
    pairs = {
        (package_of(user), user, package_of(m)) for user, used in imports().items() for m in used
    }
    return Counter((user, used) for user, _, used in pairs if user != used)


def package_of(module: str) -> str:
    """Return the package of the picture that contains a module; an external module is its own."""
    names = (".".join(module.split(".")[:depth]) for depth in (2, 1))
    return next((name for name in names if name in packages()), module)


@cache
def lines(name: str) -> int:
    """Count a package's or module's lines of code, without comments and docstrings."""
    path = ROOT.joinpath("demo_model" if name == "foveate_demo" else "src", *name.split("."))
    files = path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]
    return sum(code_lines(file.read_text(encoding="utf-8")) for file in files)


def code_lines(text: str) -> int:
    """Count the lines of a file's text that contain code."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    spans = (range(t.start[0], t.end[0] + 1) for t in tokens if t.type not in SKIPPED)
    found = {line for span in spans for line in span}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            found -= {*range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)}
    return len(found)


def circle() -> list[str]:
    """Return modules that import each other in a circle, or an empty list."""
    try:
        TopologicalSorter(imports()).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def facts() -> str:
    """Return a sentence on circles, and one row per external library with its lowest floor."""
    own = sum(used.startswith("foveate") for each in imports().values() for used in each)
    count = (
        f"About {round(len(imports()), -1)} modules with {round(own, -2):,} imports of each other"
    )
    found = circle()
    rows = [f"{count}; {' -> '.join(found) if found else 'none imports itself by way of others'}."]
    rows += ["", "| from outside | packages that import it | lowest of these |", "|---|---|---|"]
    order = list(enumerate(reversed(floors()["foveate"]), start=1))
    for external in EXTERNAL:
        users = {user for user, used in importing() if used == external}
        floor, row = next((floor, row) for floor, row in order if users & {*row})
        names = ", ".join(f"`{name}`" for name in row if name in users)
        rows.append(f"| {external} | {len(users)} of {len(packages())} | {names}, floor {floor} |")
    return "\n".join(rows)


def picture() -> str:
    """Draw a row per package: name, floor, size, and a dot in the column of each import."""
    houses = [[name for row in rows for name in row] for rows in floors().values()]
    rows = _edges(houses, TOP, ROW, BETWEEN_ROWS)
    columns = _edges([*houses, [*EXTERNAL]], MATRIX, COLUMN, BETWEEN_COLUMNS)
    right = max(columns.values()) + COLUMN
    parts = [*_heads(rows, columns, right), *_names(rows, right)]
    parts += [part for user in rows for part in _dots(user, rows[user], columns)]
    title = "Packages, floor by floor, and what each imports"
    return svg(title, right + 40, max(rows.values()) + ROW + 8, parts)


def _edges(groups: list[list[str]], first: float, step: float, between: float) -> dict[str, float]:
    """Return the top edge of each package's row, or the left edge of its column."""
    found: dict[str, float] = {}
    for number, group in enumerate(groups):
        found |= {
            name: first + step * index + between * number
            for index, name in enumerate(group, start=len(found))
        }
    return found


def _heads(rows: Mapping[str, float], columns: Mapping[str, float], right: float) -> Iterator[str]:
    """Draw a frame with a name around each house, and a slanted name over each column."""
    for house, of in floors().items():
        top, height = rows[of[0][0]], ROW * sum(map(len, of))
        text = f"{house}: {float(f'{lines(house):.2g}'):,.0f} lines"
        yield label(LEFT, top - 6, text)
        frame = f'width="{right - LEFT:g}" height="{height:g}" fill="none" stroke="{GREY}"'
        yield f'<rect x="{LEFT:g}" y="{top:g}" {frame}/>'
    for name, x in columns.items():
        turned = f"translate({x + 10:g} {TOP - 6:g}) rotate(-60)"
        yield f'<g transform="{turned}">{label(0, 0, name.rpartition(".")[2], size=11)}</g>'


def _names(rows: Mapping[str, float], right: float) -> Iterator[str]:
    """Draw a line above each floor, and its packages with their lines of code.

    Lines are rounded to hundreds, so that few changes of the code change the picture.
    """
    for row in (row for of in floors().values() for row in of):
        floor = f"M{LEFT:g} {rows[row[0]]:g}H{right:g}"
        yield f'<path stroke="{GREY}" stroke-opacity=".35" d="{floor}"/>'
        for name in row:
            y, size = rows[name], round(lines(name), -2)
            bar = f'width="{size * PER_LINE:.1f}" height="14" fill="{BLUE}" fill-opacity=".35"'
            yield f'<rect x="{LEFT:g}" y="{y + 2:g}" {bar}/>'
            yield label(LEFT + 6, y + 13, name.rpartition(".")[2])
            number = f"{size:,}" if size else "under 50"
            yield label(MATRIX - 8, y + 13, number, size=11, anchor="end")


def _dots(user: str, y: float, columns: Mapping[str, float]) -> Iterator[str]:
    """Draw a square where a package meets itself, and a dot in the column of each import.

    A dot grows with the number of importing modules; red marks imports not on a floor below.
    """
    x = columns[user]
    yield f'<rect x="{x + 2:g}" y="{y + 4:g}" width="10" height="10" fill-opacity=".25"/>'
    for used, left in columns.items():
        if count := importing().get((user, used), 0):
            radius = 1 + 1.5 * len(str(count))
            color = BLUE if left > x else RED
            yield f'<circle cx="{left + 7:g}" cy="{y + 9:g}" r="{radius}" fill="{color}"/>'
