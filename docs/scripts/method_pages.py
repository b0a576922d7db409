"""Pages of methods, written from their definitions by ``site_pages.py`` and not stored."""

from __future__ import annotations

import inspect
import sys
from inspect import Parameter
from pathlib import Path

import method_figures
from cells import jpeg
from kept import example

import foveate
from foveate.cli.catalogue import meaning
from foveate.policies.method import Method
from foveate.policies.parameters import describe
from foveate.policies.spec import print_value

ROOT = Path(__file__).parents[2]
PAPERS = ROOT / "docs" / "papers"
# Longer than any fence in a source.
FENCE = "`````"


def write(target: Path) -> None:
    """Write NAME.md for every method, index.md, which lists them, and the image of their pictures.

    Needs the repository's root as the current folder.
    """
    results = method_figures.results()
    for name, method in foveate.METHODS.items():
        (target / f"{name}.md").write_text(page(method, results.get(name)), encoding="utf-8")
    (target / method_figures.PICTURE).write_bytes(jpeg(example().image))
    (target / "index.md").write_text(index(), encoding="utf-8")


def index() -> str:
    """Return the page that lists all methods."""
    rows = [
        f"| [`{name}`]({name}.md) | {method.summary} | {cited(method)} |"
        for name, method in foveate.METHODS.items()
    ]
    head = (
        "# Methods\n\nThe five papers first, then what they compare with. Which of them to take is "
        "[measured](../which_method.md); they [add up](../composition.md) with a plus sign.\n\n"
        "| method | what it does | paper |\n|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def page(method: Method, result: method_figures.Result | None) -> str:
    """Return a method's page; without a result, it has no picture."""
    module = sys.modules[method.function.__module__]
    parts = [
        f"# {method.name}",
        paper(method),
        method.docs.text,
        usage(method),
        "## What it keeps" if result else "",
        method_figures.figure(result) if result else "",
        "## Parameters",
        parameters(method),
        "## How it works",
        inspect.cleandoc(module.__doc__ or ""),
        addition(method),
        figures(method),
        "## Citation" if method.paper else "",
        citation(method),
        "## Source",
        source(method),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def usage(method: Method) -> str:
    """Return a call in Python and as a spec, with the required parameters."""
    needed = {key: "20%" if key == "budget" else "..." for key in required(method)}
    spec = ",".join(f"{key}={value}" for key, value in needed.items())
    call = ", ".join(f'{key}="{value}"' for key, value in needed.items())
    line = f"{method.name}:{spec}" if spec else method.name
    return f"```python\nfoveate.{method.name}({call})\n```\n\nAs a spec: `{line}`"


def required(method: Method) -> list[str]:
    """Return the parameters without a default."""
    return [key for key, value in method.parameters.items() if value.default is Parameter.empty]


def parameters(method: Method) -> str:
    """Return one row per parameter, with its default and what it takes."""
    if not method.parameters:
        return "None."
    rows = ["| parameter | default | what it does | takes |", "|---|---|---|---|"]
    for key, parameter in method.parameters.items():
        takes = describe(method.hints[key]) or "an amount: 20%, 256 or 64MB"
        is_optional = parameter.default is not Parameter.empty
        default = f"`{print_value(parameter.default)}`" if is_optional else "required"
        cells = (f"`{key}`", default, meaning(method, key), takes)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    origin = method.docs.defaults.replace("](", "](../")  # written for a page in docs/
    if origin:
        rows += ["", f"Where the [defaults](../defaults.md) come from: {origin}."]
    return "\n".join(rows)


def paper(method: Method) -> str:
    """Return the paper's title, year, code, and the page of what was checked of it."""
    if method.paper is None:
        return ""
    text = f"{cited(method)}, {method.paper.venue}."
    if method.paper.code:
        text += f" [Authors' code]({method.paper.code})."
    if (PAPERS / f"{method.name}.md").is_file():
        text += f" [What was checked of it](../papers/{method.name}.md)."
    return text


def addition(method: Method) -> str:
    """Return what the method contributes when it is added to another."""
    stages = ", ".join(method.adds)
    wraps = ", and its score wraps the one that is there" if method.wraps else ""
    return f"[Added](../composition.md) to another method it brings along: {stages}{wraps}."


def figures(method: Method) -> str:
    """Return the method's rows of the leaderboard, with an introduction."""
    found = method_figures.rows(method.name)
    if not found:
        return ""
    introduction = (
        "The share of questions answered right, with its 95 % interval, and the time of "
        "compressing over that of the prefill, from the [leaderboard](../quality.md), which says "
        "how it was measured and has all methods beside each other."
    )
    return f"## Figures\n\n{introduction}\n\n{found}"


def cited(method: Method) -> str:
    """Return the paper's title as a link, and its year."""
    if method.paper is None:
        return ""
    paper = method.paper
    where = f"https://arxiv.org/abs/{paper.arxiv}" if paper.arxiv else paper.code
    title = f"[{paper.title}]({where})" if where else paper.title
    return f"{title}, {paper.year}"


def citation(method: Method) -> str:
    """Return the paper's BibTeX."""
    return f"```bibtex\n{method.paper.bibtex}\n```" if method.paper else ""


def source(method: Method) -> str:
    """Return the method's file, or all files of its folder."""
    first = Path(str(sys.modules[method.function.__module__].__file__)).resolve()
    folder = sorted(first.parent.glob("*.py")) if first.name == "__init__.py" else [first]
    return "\n\n".join(map(_file, folder))


def _file(path: Path) -> str:
    title = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    return f"`{title}`\n\n{FENCE} python\n{path.read_text(encoding='utf-8')}\n{FENCE}"
