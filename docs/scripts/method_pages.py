"""A page for every method, from its definition. None is stored: ``site_pages.py`` writes them."""

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
    """Writes NAME.md for every method, index.md, which lists them, and the image of their pictures;
    call it where the repository's root is the folder at work.
    """
    shown = method_figures.shown()
    for name, method in foveate.METHODS.items():
        (target / f"{name}.md").write_text(page(method, shown.get(name)), encoding="utf-8")
    (target / method_figures.PICTURE).write_bytes(jpeg(example().image))
    (target / "index.md").write_text(index(), encoding="utf-8")


def index() -> str:
    """The list of all methods."""
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


def page(method: Method, shown: method_figures.Shown | None) -> str:
    """One method: what it does and keeps, its parameters, its figures, its paper and its source."""
    module = sys.modules[method.function.__module__]
    parts = [
        f"# {method.name}",
        paper(method),
        method.docs.text,
        usage(method),
        "## What it keeps" if shown else "",
        method_figures.figure(shown) if shown else "",
        "## Parameters",
        parameters(method),
        "## How it works",
        inspect.cleandoc(module.__doc__ or ""),
        beside(method),
        figures(method),
        "## Citation" if method.paper else "",
        citation(method),
        "## Source",
        source(method),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def usage(method: Method) -> str:
    """A spec with all that has no default, and the same in Python."""
    needed = {key: "20%" if key == "budget" else "..." for key in required(method)}
    spec = ",".join(f"{key}={value}" for key, value in needed.items())
    call = ", ".join(f'{key}="{value}"' for key, value in needed.items())
    line = f"{method.name}:{spec}" if spec else method.name
    return f"```python\nfoveate.{method.name}({call})\n```\n\nAs a spec: `{line}`"


def required(method: Method) -> list[str]:
    """The parameters without a default."""
    return [key for key, one in method.parameters.items() if one.default is Parameter.empty]


def parameters(method: Method) -> str:
    """One row a parameter: its default, and what it takes."""
    if not method.parameters:
        return "None."
    rows = ["| parameter | default | what it does | takes |", "|---|---|---|---|"]
    for key, parameter in method.parameters.items():
        takes = describe(method.hints[key]) or "an amount: 20%, 256 or 64MB"
        given = parameter.default is not Parameter.empty
        default = f"`{print_value(parameter.default)}`" if given else "required"
        cells = (f"`{key}`", default, meaning(method, key), takes)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    whence = method.docs.defaults.replace("](", "](../")  # written for a page in docs/
    if whence:
        rows += ["", f"Where the [defaults](../defaults.md) come from: {whence}."]
    return "\n".join(rows)


def paper(method: Method) -> str:
    """Where it is from: title, year, the authors' code, and the page of what was checked of it."""
    if method.paper is None:
        return ""
    text = f"{cited(method)}, {method.paper.venue}."
    if method.paper.code:
        text += f" [Authors' code]({method.paper.code})."
    if (PAPERS / f"{method.name}.md").is_file():
        text += f" [What was checked of it](../papers/{method.name}.md)."
    return text


def beside(method: Method) -> str:
    """What it is in a sum."""
    stages = ", ".join(method.adds)
    wraps = ", and its score wraps the one that is there" if method.wraps else ""
    return f"[Added](../composition.md) to another method it brings along: {stages}{wraps}."


def figures(method: Method) -> str:
    """Its rows of the leaderboard, or where to read why it has none."""
    found = method_figures.rows(method.name)
    if not found:
        return ""
    said = (
        "The share of questions answered right, with its 95 % interval, and the time of "
        "compressing over that of the prefill, from the [leaderboard](../quality.md), which says "
        "how it was measured and has all methods beside each other."
    )
    return f"## Figures\n\n{said}\n\n{found}"


def cited(method: Method) -> str:
    """The paper's title, with where to read it."""
    if method.paper is None:
        return ""
    paper = method.paper
    where = f"https://arxiv.org/abs/{paper.arxiv}" if paper.arxiv else paper.code
    title = f"[{paper.title}]({where})" if where else paper.title
    return f"{title}, {paper.year}"


def citation(method: Method) -> str:
    """The paper's BibTeX."""
    return f"```bibtex\n{method.paper.bibtex}\n```" if method.paper else ""


def source(method: Method) -> str:
    """The whole file, or all of a folder, in which the comments name the paper's equations."""
    first = Path(str(sys.modules[method.function.__module__].__file__)).resolve()
    folder = sorted(first.parent.glob("*.py")) if first.name == "__init__.py" else [first]
    return "\n\n".join(map(_file, folder))


def _file(path: Path) -> str:
    shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path.name
    return f"`{shown}`\n\n{FENCE} python\n{path.read_text(encoding='utf-8')}\n{FENCE}"
