"""Which calls make a tensor in the process's default type or on its default device.

    python -m tests.surface.factories

A program around the library may have changed either (``torch.set_default_dtype``, which loaders
leave behind, ``torch.set_default_device``), so the library says of every tensor which it has. A
quotient of whole numbers has the default type too, and no call that could be seen here:
tests/core/test_defaults.py watches for it while all methods run.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHECKED = ("src", "demo_model/foveate_demo", "demo_model/foveate_reader")

NUMBERS = {
    "as_tensor", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "normal", "ones",
    "rand", "randn", "scalar_tensor", "tensor", "zeros",
}  # fmt: skip
"""Of the default type where none is given, or perhaps: that hangs on what they are called with."""
WHOLE = {"arange", "randint", "randperm", "tril_indices", "triu_indices"}
"""Of whole numbers, int64 whatever the default; the device is to be given."""
WINDOWS = {"bartlett_window", "blackman_window", "hamming_window", "hann_window", "kaiser_window"}
UNTYPED = {"Tensor", "FloatTensor", "get_default_dtype", "set_default_device", "set_default_dtype"}
"""Nothing that is given to them helps, or they change the default under everybody else."""

ALLOWED = {
    "src/foveate/models/qwen_vl_vision.py": "parameters: from_pretrained says their type and "
    "device, and does it by the defaults"
}
"""Files that are left out, and why."""


def faults(text: str) -> Iterator[tuple[int, str]]:
    """Of a file's text, the line of each such call and what to write instead."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            known = NUMBERS | WHOLE | WINDOWS | UNTYPED
            for name in sorted({one.name for one in node.names} & (known - {"Tensor"})):
                yield node.lineno, f"call it as torch.{name}, so that this check sees it"
        elif isinstance(node, ast.Call) and (name := _of_torch(node.func)):
            yield from ((node.lineno, fault) for fault in _fault(name, node))


def _of_torch(called: ast.expr) -> str | None:
    of_torch = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name)
    return called.attr if of_torch and called.value.id == "torch" else None


def _fault(name: str, call: ast.Call) -> Iterator[str]:
    given = {keyword.arg for keyword in call.keywords}
    if name in UNTYPED:
        yield f"torch.{name}: give type and device where a tensor is made, and leave the defaults"
    if name == "where" and len(call.args) == 3 and _broken_numbers(*call.args[1:]):
        yield "torch.where of two numbers has the default type: make one of them a tensor"
    wanted = {"device"} if name in WHOLE and not any(map(_may_be_broken, call.args)) else set()
    if name in NUMBERS | WINDOWS | WHOLE and not wanted:
        wanted = {"dtype", "device"}
    if None not in given and (missing := sorted(wanted - given)):
        yield f"torch.{name} without {' and '.join(f'{one}=' for one in missing)}: give " + (
            "those of the tensor that it goes with"
        )


def _broken_numbers(*given: ast.expr) -> bool:
    """Whether all are numbers of Python's, perhaps with a sign, and one has a fraction."""
    bare = [node.operand if isinstance(node, ast.UnaryOp) else node for node in given]
    values = [node.value for node in bare if isinstance(node, ast.Constant)]
    return len(values) == len(given) and any(isinstance(value, float) for value in values)


def _may_be_broken(node: ast.expr) -> bool:
    """Whether an argument of arange and its like need not be whole: such a range has the default
    type.
    """
    return any(
        (isinstance(part, ast.Constant) and isinstance(part.value, float))
        or (isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div))
        for part in ast.walk(node)
    )


def found(root: Path = ROOT) -> Iterator[str]:
    """Every such call as ``file:line: what to write``."""
    for path in sorted(path for folder in CHECKED for path in (root / folder).rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name not in ALLOWED:
            for line, fault in sorted(faults(path.read_text(encoding="utf-8"))):
                yield f"{name}:{line}: {fault}"


def main() -> int:
    """Prints them; 1 where there is any."""
    lines = list(found())
    print(*lines, sep="\n", end="\n" if lines else "")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
