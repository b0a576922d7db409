"""The wheels, as pip installs them: `foveate` runs the README's first example on a tiny LLaVA, and
its command; with `--demo`, `foveate[demo]` answers, evaluates and makes pages.

Run by `make test-wheel` in an environment that has the wheels and what they ask for, nothing else.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

import foveate
from foveate.defaults import SCANS, SHIPPED
from foveate_lab.reproduce.tables.printed import printed
from tests import zoo

ROOT = Path(__file__).parents[1]
LARGEST = 1_400_000  # bytes of what `pip install foveate` brings of its own


def main(demo: bool) -> None:
    """Raises at the first thing that is not as it should be."""
    installed = Path(foveate.__file__)
    assert ROOT / "src" not in installed.parents, f"{installed} is not the wheel's"
    if demo:
        with tempfile.TemporaryDirectory() as folder:
            the_demo(Path(folder))
    else:
        the_library()
    print(f"wheel: torch {torch.__version__}, transformers {transformers.__version__}: runs")


def the_library() -> None:
    """What the README shows first, and the command without the demo's files."""
    (wheel,) = (ROOT / "dist").glob("foveate-*.whl")
    assert wheel.stat().st_size < LARGEST, f"{wheel} has {wheel.stat().st_size:,} bytes"
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    given = {"model": zoo.build("llava"), "inputs": zoo.prompt("llava", lengths=(170,))}
    exec(example, given)
    assert given["session"].stats.kept_tokens == 34, given["session"].stats
    listed = command("methods")
    assert all(name in listed.stdout for name in foveate.METHODS)
    assert printed("csp_table2"), "the papers' figures are not in the wheel"
    refused = command("run", status=2)
    assert "pip install 'foveate[demo]'" in refused.stderr, refused.stderr


def the_demo(folder: Path) -> None:
    """What the README's first command shows, and an evaluation with its page."""
    rows = json.loads(command("run", "--json").stdout)["rows"]
    assert rows[0]["answer"] == "Bruno's birthday: 2 November 1964", rows[0]
    read = json.loads(command("run", "--model", "reader", "--json").stdout)
    assert read["model"] == SHIPPED[SCANS], read
    command("eval", "--limit", "2", "--timed", "0", "--methods", "snapkv", "--out", folder / "out")
    command("report", folder / "out")
    assert (folder / "out" / "report.html").stat().st_size > 10_000
    command("lens", "--method", "snapkv", "--budget", "20%", "--out", folder / "lens.html")
    assert (folder / "lens.html").stat().st_size > 100_000


def command(*arguments: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """What ``foveate`` prints; of its source, nothing but the installed is found."""
    program = [str(Path(sys.executable).with_name("foveate")), *map(str, arguments)]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(program, capture_output=True, text=True, env=environ)
    assert done.returncode == status, done.stderr
    return done


if __name__ == "__main__":
    main(demo="--demo" in sys.argv)
