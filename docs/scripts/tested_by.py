"""Which tests cover which module, read from the imports of both; for ``tests/README.md``.

A test counts for a module if it names what is defined there, directly or through the packages that
pass it on, or, of a method, writes its spec. A module that no test names counts as tested through
the nearest one that uses it. One that nothing tested uses needs its reason in ``ELSEWHERE``.
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
"""What covers a module, or a package, that no test reaches by an import; or why nothing does."""

Uses = Mapping[str, set[str]]
"""By module or file, the modules it uses; or by module, what uses it."""


class Source(NamedTuple):
    """What a module defines, and what it passes on: the module and the name there."""

    tree: ast.Module
    package: str
    own: bool
    passes: Mapping[str, tuple[str, str | None]]


def table(root: Path = ROOT) -> str:
    """One table a package, one row a module.

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
    """The tests of one module, or those of the module that it is tested through; those of its own
    name and folder come first, then those that name the fewest other modules.
    """
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
    """Test files that name ``through``: first those of the name and folder of the module ``name``,
    then those that name the fewest other modules.
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
    """What ``ELSEWHERE`` says of a module or of its package."""
    for one, what in ELSEWHERE.items():
        if name == one or ("." in one and name.startswith(f"{one}.")):
            return what
    raise ValueError(
        f"{name}: no test imports it or what uses it. Add one, or say in ELSEWHERE of "
        "docs/scripts/tested_by.py what covers it."
    )


def read(src: Path) -> dict[str, Source]:
    """Every module of the library and of the laboratory, by its name."""
    found = {}
    for path in sorted(src.rglob("*.py")):
        parts = path.relative_to(src).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        package = name if is_package else name.rpartition(".")[0]
        own = any(isinstance(one, ast.FunctionDef | ast.ClassDef) for one in tree.body)
        own = own or not is_package
        found[name] = Source(tree, package, own, dict(imported(tree)))
    return found


@cache
def naming(tree: ast.AST) -> list[ast.AST]:
    """What of a file names something; walking takes most of the time, and is done once."""
    kinds = (ast.Import, ast.ImportFrom, ast.Attribute, ast.Constant)
    return [one for one in ast.walk(tree) if isinstance(one, kinds)]


def imported(tree: ast.AST) -> Iterator[tuple[str, tuple[str, str | None]]]:
    """What each name stands for that is imported: a module, or a name in one."""
    for one in naming(tree):
        if isinstance(one, ast.Import):
            for alias in one.names:
                if alias.asname:
                    yield alias.asname, (alias.name, None)
                else:
                    yield alias.name.split(".")[0], (alias.name.split(".")[0], None)
                    yield alias.name, (alias.name, None)  # loaded, and reached by its dots
        elif isinstance(one, ast.ImportFrom) and one.module and not one.level:
            for alias in one.names:
                yield alias.asname or alias.name, (one.module, alias.name)


def defines(module: str, name: str | None, sources: Mapping[str, Source]) -> str:
    """The module that a name of another one comes from."""
    if name is None or module not in sources:
        return module
    if f"{module}.{name}" in sources:
        return f"{module}.{name}"
    passed = sources[module].passes.get(name)
    if passed and passed[0].startswith("foveate") and passed != (module, name):
        return defines(*passed, sources)
    return module


def uses(tree: ast.AST, sources: Mapping[str, Source]) -> set[str]:
    """The modules whose definitions a file names, and the packages that it takes them from."""
    names = dict(imported(tree))
    found = {defines(*one, sources) for one in names.values()} | {m for m, _ in names.values()}
    for one in naming(tree):
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
            module = defines(*names.get(one.value.id, ("", None)), sources)
            found.add(defines(module, one.attr, sources))
        elif isinstance(one, ast.Constant) and isinstance(one.value, str):
            spec = re.findall(r"^\w+|(?<=\+)\w+", one.value)
            found |= {one.value, *(f"{part}{name}" for name in spec for part in METHODS)}
    return (found & sources.keys()) - {"foveate"}


def tests_in(folder: Path, sources: Mapping[str, Source]) -> Uses:
    """By test file, the modules that it names, or that the helpers of its folder do for it."""
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
    """By module, those that use it; operators load their kernels by name, and so does the command
    line what stands beside it.
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
    """The module itself if a test names it; else the nearest that uses it, through others: rather
    one that is no package, which would only pass it on, and that many tests name. ``count`` is how
    many name each.
    """
    packages = {one.rpartition(".")[0] for one in used_by}
    seen, at = {name}, {name}
    while at:
        if tested := [one for one in sorted(at) if one in count]:
            return max(tested, key=lambda one: (one not in packages, count[one]))
        at = {user for one in at for user in used_by.get(one, ())} - seen
        seen |= at
    return None
