"""Tables of docs/models.md: the census of models, and the ways to load and to call one."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.census.known import read  # noqa: E402
from tests.census.verdict import Verdict  # noqa: E402

WAYS = (
    *(
        ROOT / f"tests/backends/test_{name}.py"
        for name in ("ways", "turns", "module_states", "pickling", "gradients", "refused_by_name")
    ),
    ROOT / "tests/demo/test_pipeline.py",
)
OPTIONS = (
    "options",
    "fp8",
    "requests",
    "sharing",
    "boundaries",
    "beginnings",
    "robust",
    "runner_v2",
    "async",
    "processes",
    "server",
)
TEXT_ONLY = "text"


def newest() -> dict[str, Verdict]:
    """The verdicts of the newest release that the census ran on."""
    return list(read().values())[-1]


def releases() -> str:
    """One row a release: how many types are exact, refused, and not built."""
    rows = [
        "| transformers | exact | of these with images | refused | not built |",
        "|---|---|---|---|---|",
    ]
    for release, types in read().items():
        kinds = Counter(one.kind for one in types.values())
        images = sum(with_images(one) for one in types.values())
        counts = (kinds["exact"], images, kinds["refused"], kinds["not built"])
        rows.append(f"| {release} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows)


def with_images(one: Verdict) -> bool:
    """Whether it is exact with an image or a video."""
    return one.kind == "exact" and any(
        not step.startswith((TEXT_ONLY, "two")) for step in one.steps
    )


def exact() -> str:
    """One row a type that is exact, with the prompts that were tried."""
    rows = ["| type | prompts | layers compressed | image tokens known |", "|---|---|---|---|"]
    for name, one in newest().items():
        if one.kind == "exact":
            known = "yes" if one.visual else "give `vision=`" if with_images(one) else ""
            rows.append(f"| `{name}` | {', '.join(one.steps)} | {one.layers} | {known} |")
    return "\n".join(rows)


def others() -> str:
    """One row a type that is not, with the reason."""
    rows = ["| type | | reason |", "|---|---|---|"]
    rows += [
        f"| `{name}` | {one.kind} | {one.reason.replace('|', '/')} |"
        for name, one in newest().items()
        if one.kind != "exact"
    ]
    return "\n".join(rows)


def supported() -> str:
    """A sentence of how many there are, for the README."""
    found = newest()
    release = list(read())[-1]
    images = sorted(name for name, one in found.items() if with_images(one))
    text = sorted(name for name, one in found.items() if one.kind == "exact" and name not in images)
    return (
        f"Of the image-text types of transformers {release}, {len(images)} are exact with images, "
        f"and {len(text)} of the most used text types; [docs/models.md](docs/models.md) lists "
        "them, and says of every other one why it is refused."
    )


def ways() -> str:
    """One row a test of ways to load or call a model, of whose docstring it is."""
    return said("| way | | |", WAYS)


def options() -> str:
    """The same of what vLLM is asked for beside a policy."""
    return said("| option | | |", [ROOT / f"tests/serving/test_{name}.py" for name in OPTIONS])


def said(head: str, files: Iterable[Path]) -> str:
    """One row a test whose docstring is one: three cells."""
    rows = [head, "|---|---|---|"]
    for node in (node for path in files for node in ast.parse(path.read_text("utf-8")).body):
        text = (isinstance(node, ast.FunctionDef) and ast.get_docstring(node)) or ""
        if text.count(" | ") == 2:
            rows.append(f"| {' '.join(text.split())} |")
    return "\n".join(rows)
