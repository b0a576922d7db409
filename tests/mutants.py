"""Randomly drawn mutants of the source, each run against the test files that execute it.

    python tests/mutants.py MAP --measure FILE ...   note which functions these test files execute
    python tests/mutants.py MAP --log LOG            run 300 mutants, drawn with --seed
    python tests/mutants.py MAP --log NEW --again LOG --tests DIR   its survivors, with other tests

Mutants that are in the log are not run again. One survives if all of its test files pass.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest

REPO = Path(__file__).resolve().parent.parent
SRC = REPO / "src"
sys.path.insert(0, str(REPO / "docs" / "scripts"))
try:
    import tested_by
finally:
    sys.path.pop(0)

OPTIONS = ("-x", "-q", "-n0", "-pno:cacheprovider", "--tb=line", "-Wignore:Module already imported")
SWAPS = (
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)),
    (ast.FloorDiv, ast.Mod),
)
OTHER: dict[type, Any] = dict(SWAPS) | {new: old for old, new in SWAPS}


class Mutant(NamedTuple):
    """One change of the source: ``old``, at an offset in bytes, becomes ``new``."""

    file: str  # below src
    line: int
    start: int
    old: str
    new: str
    function: int  # first line of the innermost function around it; 0 outside of functions

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.start}: {self.old} -> {self.new}"


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what an expression or a statement can be changed into."""
    new: Any = copy.deepcopy(node)
    if isinstance(new, ast.Compare) and type(new.ops[0]) in OTHER:
        new.ops[0] = OTHER[type(new.ops[0])]()
        yield new
    elif isinstance(new, ast.BinOp | ast.BoolOp) and type(new.op) in OTHER:
        new.op = OTHER[type(new.op)]()
        yield new
    elif isinstance(new, ast.Constant) and isinstance(new.value, bool | int | float):
        yield ast.Constant(not new.value if isinstance(new.value, bool) else new.value + 1)
    elif isinstance(new, ast.Return) and new.value is not None:
        yield ast.Return(ast.Constant(None))
    elif isinstance(new, ast.Call) and (new.keywords or new.args):
        (new.keywords or new.args).pop()
        yield new
    elif isinstance(new, ast.If | ast.IfExp | ast.While):
        yield ast.UnaryOp(ast.Not(), new.test)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield every mutant of a file; annotations and decorators are not changed."""
    text = path.read_bytes()
    starts = [0, *accumulate(map(len, text.splitlines(keepends=True)))]

    def visit(node: ast.AST, function: int) -> Iterator[Mutant]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        for new in changed(node):
            spot: Any = getattr(node, "test", node)  # of a condition, what is negated
            start = starts[spot.lineno - 1] + spot.col_offset
            old = text[start : starts[spot.end_lineno - 1] + spot.end_col_offset].decode()
            written = ast.unparse(ast.fix_missing_locations(new))
            written = written if isinstance(node, ast.Return) else f"({written})"
            yield Mutant(str(path.relative_to(SRC)), spot.lineno, start, old, written, function)
        left_out = [getattr(node, name, None) for name in ("annotation", "returns")]
        for child in ast.iter_child_nodes(node):
            if child not in [*left_out, *getattr(node, "decorator_list", ())]:
                yield from visit(child, function)

    yield from visit(ast.parse(text), 0)


def stored(path: Path | None) -> dict[str, Any]:
    """Return what a JSON file holds; nothing if there is no file."""
    return json.loads(path.read_text()) if path and path.exists() else {}


class Measures:
    """A plugin of pytest that notes which functions of the source each test file executes."""

    def __init__(self, path: Path) -> None:
        self.path, self.codes, self.found = path, set[CodeType](), stored(path)

    def enter(self, frame: FrameType, event: str, argument: Any) -> None:
        self.codes.add(frame.f_code)  # and returns no tracer of lines, which would take long

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        sys.settrace(self.enter)
        result = yield
        sys.settrace(None)
        if nextitem is None or nextitem.path != item.path:
            names = (f"{code.co_filename}:{code.co_firstlineno}" for code in self.codes)
            ours = {name.removeprefix(f"{SRC}/") for name in names if name.startswith(f"{SRC}/")}
            self.found[item.nodeid.partition("::")[0]] = sorted(ours)
            self.codes.clear()
            self.path.write_text(json.dumps(self.found))
        return result


class Tests:
    """The test files of a checkout, and what is known of each: the functions that it executes if it
    was measured, else the modules that it names.
    """

    def __init__(self, root: Path, functions: dict[str, list[str]]) -> None:
        sources = tested_by.read(SRC)
        named = tested_by.tests_in(root / "tests", sources)
        self.functions = {name: functions[name] for name in functions if (root / name).exists()}
        self.named = {
            name: of
            for name, of in named.items()
            if f"tests/{name}" not in functions and "serving" not in name  # which need vLLM
        }
        self.used_by = tested_by.users(sources)

    def covering(self, mutant: Mutant) -> list[str]:
        """Files that execute the mutant's function, or its file if it stands in none: those
        that execute least first, then as many unmeasured ones as tests/README.md lists of a module.
        """
        called = f"{mutant.file}:{mutant.function or ''}"
        measured = [
            (len(functions), name)
            for name, functions in self.functions.items()
            if (called in functions if mutant.function else called in "".join(functions))
        ]
        module = mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        through = tested_by.nearest(module, self.named, self.used_by)
        nearest = tested_by.in_order(module, through, self.named) if through else []
        files = [name for _, name in sorted(measured)]
        return files + [f"tests/{name}" for name in nearest[: tested_by.SHOWN]]


def tried(mutant: Mutant, files: list[str], tests: Path, limit: int) -> dict[str, Any]:
    """Run test files on a copy of the source with the mutant, until one fails."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="foveate-mutant-") as folder:
        source, output = Path(folder).resolve() / "src", Path(folder) / "output"
        shutil.copytree(SRC, source, ignore=shutil.ignore_patterns("__pycache__"))
        for other in {*tests.glob("[!.]*")} - {tests / "src"}:  # tests read docs beside the source
            source.with_name(other.name).symlink_to(other)
        text, end = (source / mutant.file).read_bytes(), mutant.start + len(mutant.old.encode())
        (source / mutant.file).write_bytes(text[: mutant.start] + mutant.new.encode() + text[end:])
        if not (child := os.fork()):  # which need not import PyTorch again
            os.setsid()
            signal.alarm(limit)
            os.dup2(os.open(output, os.O_CREAT | os.O_WRONLY), 1)
            os.dup2(1, 2)
            os.chdir(tests)
            sys.path[:0] = [str(source), str(tests / "demo_model"), str(tests)]
            os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:3])
            os._exit(pytest.main([*OPTIONS, *files]) if files else 5)  # no test was run
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # processes that its tests left
        lines = output.read_text(errors="replace").splitlines()
    outcome = {0: "survived", 5: "not executed", -signal.SIGALRM: "no end"}.get(status, "caught")
    why = next((line for line in lines if line.startswith(("FAILED", "ERROR"))), f"status {status}")
    return {"outcome": outcome, "why": why, "seconds": round(time.monotonic() - start)}


def main() -> int:
    """Measure the map, or run the mutants that are not in the log."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("map", type=Path, help="functions of each test file, in JSON")
    parser.add_argument("--measure", nargs="+", metavar="FILE", help="add test files to the map")
    parser.add_argument("--log", type=Path, help="results, in JSON")
    parser.add_argument("--again", type=Path, metavar="LOG", help="run the survivors of a log")
    parser.add_argument("--tests", type=Path, default=REPO, help="checkout whose tests run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=900, help="seconds of a run of test files")
    options = parser.parse_args()
    os.environ |= {"FOVEATE_TESTS_CHECKED": "0", "HF_HUB_OFFLINE": "1", "TRITON_INTERPRET": "1"}
    sys.path[:1] = [str(SRC), str(REPO / "demo_model"), str(REPO)]
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:3])  # for processes that tests start
    if options.measure:
        return pytest.main([*OPTIONS[1:], *options.measure], [Measures(options.map.resolve())])
    import transformers.modeling_utils  # noqa: F401 - once, for all runs

    done, again = stored(options.log), stored(options.again)
    tests = Tests(options.tests, stored(options.map))
    drawn = [one for path in sorted(SRC.rglob("*.py")) for one in mutants_of(path)]
    for mutant in random.Random(options.seed).sample(drawn, 300):
        key = str(mutant)
        if key not in done and again.get(key, {"outcome": "survived"})["outcome"] == "survived":
            files = tests.covering(mutant)
            done[key] = tried(mutant, files, options.tests, options.limit)
            print(f"{done[key]['seconds']:5} s  {done[key]['outcome']:12} {key}", flush=True)
            options.log.write_text(json.dumps(done, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
