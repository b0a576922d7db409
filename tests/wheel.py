"""The wheel, as pip installs it, runs the README's first example on a tiny LLaVA, and the command.

Run by `make test-wheel` in an environment that has the wheel and what it asks for, nothing else.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import torch
import transformers

import foveate
from foveate.reproduce.printed import printed
from tests import zoo

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Raises at the first thing that is not as it should be."""
    installed = Path(foveate.__file__)
    assert ROOT / "src" not in installed.parents, f"{installed} is not the wheel's"
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    given = {"model": zoo.build("llava"), "inputs": zoo.prompt("llava", lengths=(170,))}
    exec(example, given)
    assert given["session"].stats.kept_tokens == 34, given["session"].stats
    program = Path(sys.executable).with_name("foveate")
    listed = subprocess.run([program, "methods"], capture_output=True, text=True, check=True)
    assert all(name in listed.stdout for name in foveate.METHODS)
    assert printed("csp_table2"), "the papers' figures are not in the wheel"
    print(f"wheel: torch {torch.__version__}, transformers {transformers.__version__}: runs")


if __name__ == "__main__":
    main()
