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
    "drafts",
    "connectors",
    "sessions",
    "windows",
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
    """Return the verdicts of the newest release in the census."""
    return list(read().values())[-1]


def releases() -> str:
    """Return one row per release, with the number of exact, refused and unbuilt types."""
    rows = [
        "| transformers | exact | of these with images | refused | not built |",
        "|---|---|---|---|---|",
    ]
    for release, types in read().items():
        kinds = Counter(verdict.kind for verdict in types.values())
        images = sum(with_images(verdict) for verdict in types.values())
        counts = (kinds["exact"], images, kinds["refused"], kinds["not built"])
        rows.append(f"| {release} | {' | '.join(map(str, counts))} |")
    return "\n".join(rows)


def with_images(verdict: Verdict) -> bool:
    """Return whether a type is exact with an image or a video."""
    return verdict.kind == "exact" and any(
        not step.startswith((TEXT_ONLY, "two")) for step in verdict.steps
    )


def exact() -> str:
    """Return one row per exact type, with the prompts that were tried."""
    rows = ["| type | prompts | layers compressed | image tokens known |", "|---|---|---|---|"]
    for name, verdict in newest().items():
        if verdict.kind == "exact":
            unknown = "give `vision=`" if with_images(verdict) else ""
            known = "yes" if verdict.visual else unknown
            steps = ", ".join(verdict.steps)
            rows.append(f"| `{name}` | {steps} | {verdict.layers} | {known} |")
    return "\n".join(rows)


def others() -> str:
    """Return one row per type that is not exact, with the reason."""
    rows = ["| type | | reason |", "|---|---|---|"]
    rows += [
        f"| `{name}` | {verdict.kind} | {verdict.reason.replace('|', '/')} |"
        for name, verdict in newest().items()
        if verdict.kind != "exact"
    ]
    return "\n".join(rows)


def supported() -> str:
    """Return a sentence with the number of exact types, for the README."""
    found = newest()
    release = list(read())[-1]
    images = {name for name, verdict in found.items() if with_images(verdict)}
    text = {name for name, verdict in found.items() if verdict.kind == "exact"} - images
    return (
        f"Of the image-text types of transformers {release}, {len(images)} are exact with images, "
        f"and {len(text)} of the most used text types; [docs/models.md](docs/models.md) lists "
        "them, and says of every other one why it is refused."
    )


def ways() -> str:
    """Return one row per test of a way to load or call a model, from its docstring."""
    return docstring_rows("| way | | |", WAYS)


def options() -> str:
    """Return one row per test of an option of vLLM, from its docstring."""
    files = [ROOT / f"tests/serving/test_{name}.py" for name in OPTIONS]
    return docstring_rows("| option | | |", files)


def docstring_rows(head: str, files: Iterable[Path]) -> str:
    """Return one row per test whose docstring consists of three cells."""
    rows = [head, "|---|---|---|"]
    for node in (node for path in files for node in ast.parse(path.read_text("utf-8")).body):
        text = (isinstance(node, ast.FunctionDef) and ast.get_docstring(node)) or ""
        if text.count(" | ") == 2:
            rows.append(f"| {' '.join(text.split())} |")
    return "\n".join(rows)
