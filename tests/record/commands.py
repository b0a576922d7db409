"""Commands: exit code, output, messages and written files of each."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from .values import content_hash

ROOT = Path(__file__).parents[2]
FILES = {"LLAVA": "llava", "LLAMA": "llama", "PICTURE": "picture.png"}
_OUTPUTS = (".stdout", ".stderr")


def entry() -> Any:
    """Return the function that pyproject.toml names as the command."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, name = project["scripts"]["foveate"].split(":")
    return getattr(importlib.import_module(module), name)


def run_command(run: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a command in this process, which is its own: what it prints goes into files."""
    words = shlex.split(run["words"])
    sys.argv = ["foveate", *(str(folder.parent / FILES[w]) if w in FILES else w for w in words)]
    for number, name in enumerate(_OUTPUTS, 1):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT), number)
    code: Any = 0
    with contextlib.chdir(folder):
        try:
            entry()()
        except SystemExit as end:
            code = end.code or 0
    sys.stdout.flush()
    sys.stderr.flush()
    out, err = ((folder / name).read_text(encoding="utf-8") for name in _OUTPUTS)
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name not in _OUTPUTS]
    files = {path.relative_to(folder).as_posix(): path for path in sorted(paths)}
    printed = json.loads(out) if "--json" in words and out.startswith(("{", "[")) else out
    written = {name: _content(path) for name, path in files.items()}
    return {"code": code, "out": printed, "err": err, "files": " ".join(files), "file": written}


def _content(path: Path) -> Any:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.suffix == ".json":
        return json.loads(path.read_text(encoding="utf-8"))
    if path.suffix in (".html", ".txt", ".md"):
        return path.read_text(encoding="utf-8")
    return load_file(path) if path.suffix == ".safetensors" else content_hash(path.read_bytes())
