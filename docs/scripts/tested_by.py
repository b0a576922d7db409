"""Table of ``tests/README.md``: tests that cover each module, according to imports.

A test covers a module if it names a definition of it, directly or through packages that re-export
it, or if it writes a method's spec. A module that no test names is tested through the nearest one
that uses it. A module that nothing tested uses needs a reason in ``ELSEWHERE``.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SHOWN = 3  # test files a row
METHODS = ("foveate.methods.",)  # named by specs, that is in strings
ELSEWHERE = {
    "foveate": "`surface/test_light.py` and `surface/test_public.py`, which ask for every name",
    "foveate.__main__": "`surface/test_light.py`, as `python -m foveate`",
    "foveate_lab.bench.kvpress_presses": "`bench/test_bench.py`, in that process",
    "foveate_lab.bench.kvpress_side": "`bench/test_bench.py`, in a process of its own",
    "foveate.custom_generate.generate": "`chat/test_pipeline.py`, as transformers runs it",
    "foveate_lab.plugins.lmms_eval": "`plugins/test_lmms_eval.py`, by lmms-eval's commands",
}
"""Coverage of modules and packages that no test imports, or the reason for having none."""

Uses = Mapping[str, set[str]]
"""Modules that a module or file uses; or in reverse, the users of a module."""


class Source(NamedTuple):
    """A module's source, and the imported names that it passes on: module and name there.

    ``own``: it is no package, or a package that defines something itself.
    """

    tree: ast.Module
    package: str
    own: bool
    passes: Mapping[str, tuple[str, str | None]]


def table(root: Path = ROOT) -> str:
    """Return one table per package, with one row per module.

    Raises:
        ValueError: a module that no test reaches has no reason in ``ELSEWHERE``, or one that tests
            reach has a reason there.
    """
    sources = read(root / "src")
    tests, used_by = tests_in(root / "tests", sources), users(sources)
    count = Counter(module for named in tests.values() for module in named)
    lines: list[str] = []
    for name in sorted((n for n in sources if sources[n].own), key=lambda n: (n.count(".") > 1, n)):
        part = ".".join(name.split(".")[: 1 + (name.count(".") > 1)]).removeprefix("foveate.")
        if f"## {part}" not in lines:
            lines += ["", f"## {part}", "", "| module | tests |", "|---|---|"]
        lines.append(f"| `{name.removeprefix('foveate.')}` | {cell(name, tests, count, used_by)} |")
    return "\n".join(lines[1:])


def cell(name: str, tests: Uses, count: Mapping[str, int], used_by: Uses) -> str:
    """Return the tests of a module, or of the module that it is tested through, best first."""
    through = nearest(name, count, used_by)
    if through is None:
        return elsewhere(name)
    if name in ELSEWHERE:
        raise ValueError(
            f"{name}: tests reach it. Take it out of ELSEWHERE in {Path(__file__).name}."
        )
    found = in_order(name, through, tests)
    listed = ", ".join(f"`{path}`" for path in found[:SHOWN])
    listed += " and others" if len(found) > SHOWN else ""
    return listed if through == name else f"through `{through.removeprefix('foveate.')}`: {listed}"


def in_order(name: str, through: str, tests: Uses) -> list[str]:
    """Return the test files that name ``through``, best first.

    Files with the name and folder of the module ``name`` come first, then those that name the
    fewest other modules.
    """
    parts = name.split(".")

    def far(path: str) -> tuple[bool, int, int, str]:
        folders = set(path.split("/")[:-1])
        return (
            not path.endswith(f"test_{parts[-1]}.py"),
            -len(folders & {*parts}),
            len(tests[path]),
            path,
        )

    return sorted((path for path in tests if through in tests[path]), key=far)


def elsewhere(name: str) -> str:
    """Return the reason in ``ELSEWHERE`` for a module or its package."""
    for covered, reason in ELSEWHERE.items():
        if name == covered or ("." in covered and name.startswith(f"{covered}.")):
            return reason
    raise ValueError(
        f"{name}: no test imports it or what uses it. Add one, or say in ELSEWHERE of "
        "docs/scripts/tested_by.py what covers it."
    )


def read(src: Path) -> dict[str, Source]:
    """Read every module of the library and of the laboratory, by name."""
    found = {}
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        package = name if is_package else name.rpartition(".")[0]
        own = any(isinstance(node, ast.FunctionDef | ast.ClassDef) for node in tree.body)
        own = own or not is_package
        found[name] = Source(tree, package, own, dict(imported(tree)))
    return found


@cache
def naming(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes that can name a module; cached, because walking takes most of the time."""
    kinds = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Constant)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def imported(tree: ast.AST) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """Yield each imported name with its target: a module, or a module and a name in it."""
    for node in naming(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    yield alias.asname, (alias.name, None)
                else:
                    yield alias.name.split(".")[0], (alias.name.split(".")[0], None)
                    yield alias.name, (alias.name, None)  # `import a.b` also allows `a.b.name`
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, (node.module, alias.name)


def defines(module: str, name: str | None, sources: Mapping[str, Source]) -> str:
    """Return the module that defines a name, which ``module`` may only pass on."""
    if name is None or module not in sources:
        return module
    if f"{module}.{name}" in sources:
        return f"{module}.{name}"
    passed = sources[module].passes.get(name)
    if passed and passed[0].startswith("foveate") and passed != (module, name):
        return defines(*passed, sources)
    return module


def uses(tree: ast.AST, sources: Mapping[str, Source]) -> set[str]:
    """Return the modules whose definitions a file names, and the packages it imports them from."""
    names = dict(imported(tree))
    found = {defines(*target, sources) for target in names.values()} | {
        m for m, _ in names.values()
    }
    for node in naming(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = defines(*names.get(node.value.id, ("", None)), sources)
            found.add(defines(module, node.attr, sources))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            spec = re.findall(r"^\w+|(?<=\+)\w+", node.value)
            found |= {node.value, *(f"{part}{name}" for name in spec for part in METHODS)}
    return (found & sources.keys()) - {"foveate"}


def tests_in(folder: Path, sources: Mapping[str, Source]) -> Uses:
    """Return the modules that each test file names, itself or through helpers in its folder."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")}
    used = {path: uses(tree, sources) for path, tree in trees.items()}
    found = {}
    for path, tree in trees.items():
        if not path.name.startswith("test_"):
            continue
        stems = {"conftest"} | {of.rpartition(".")[2] for of, _ in dict(imported(tree)).values()}
        helpers = (used.get(path.with_name(f"{stem}.py"), set()) for stem in stems)
        found[path.relative_to(folder).as_posix()] = used[path].union(*helpers)
    return found


def users(sources: Mapping[str, Source]) -> Uses:
    """Return the users of each module.

    Some use is not visible as imports: operators load their kernels by name, and the command line
    its commands.
    """
    found: dict[str, set[str]] = defaultdict(set)
    for other, source in sources.items():
        if (operator := other.replace(".kernels.", ".")) != other and operator in sources:
            found[other].add(operator)
        if source.package.startswith(("foveate.cli", "foveate_lab.cli")):
            found[other].add("foveate.cli.app")
        for module in uses(source.tree, sources):
            found[module].add(other)
    return found


def nearest(name: str, count: Mapping[str, int], used_by: Uses) -> str | None:
    """Return the module itself if a test names it, else the nearest direct or indirect user.

    Among equally near users, one that is no package (packages only pass names on) and that most
    tests name is preferred. ``count``: the number of tests that name each module.
    """
    packages = {module.rpartition(".")[0] for module in used_by}
    seen, level = {name}, {name}
    while level:
        if tested := [module for module in sorted(level) if module in count]:
            return max(tested, key=lambda module: (module not in packages, count[module]))
        level = {user for module in level for user in used_by.get(module, ())} - seen
        seen |= level
    return None
