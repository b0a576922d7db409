"""The record: taking it, comparing with it, and accepting changes that were made on purpose."""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import transformers

from tests import jitter, zoo

from . import commands, errors, models
from .capabilities import capabilities
from .pictures import write_picture
from .values import content_hash, fields, same, shown

STORED = Path(__file__).with_name("record.json")
NOISE = 1e-6  # on linear layers: sixteen times the rounding of float32
LIMIT = 180  # seconds of a run, on a busy machine
KINDS = {
    "model": models.run_model,
    "tensors": models.run_tensors,
    "chat": models.run_chat,
    "pipeline": models.run_pipeline,
    "stream": models.run_stream,
    "command": commands.run_command,
    "error": errors.run_error,
    "spec": errors.run_spec,
}
_SHARED = ""  # folder of the model directories; a forked process finds it here


def machine() -> dict[str, Any]:
    """Return what decides about the last bits: processor, its capabilities, and versions."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = dict(line.split("\t", 1) for line in lines if line.startswith(("model name", "flags")))
    return {
        "processor": found.get("model name", platform.processor()).strip(": \t"),
        "flags": content_hash(found.get("flags", "").encode()),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def perform(run: dict[str, Any]) -> dict[str, Any]:
    """Perform one run in a folder of its own; an error is an outcome, too."""
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda entry: logged.append(entry.getMessage())  # type: ignore[method-assign]
    logging.getLogger("foveate").addHandler(handler)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory(dir=_SHARED, prefix="run") as name:
        os.environ.update(HOME=name, XDG_DATA_HOME=name, XDG_CACHE_HOME=name)
        places = {
            name: "FOLDER",
            _SHARED: "SHARED",
            str(commands.ROOT): "ROOT",
            sys.prefix: "PREFIX",
        }
        try:
            outcome = KINDS[run["kind"]](run, Path(name))
        except Exception as error:
            kinds = [k.__name__ for k in type(error).__mro__ if k.__module__.startswith("foveate")]
            name_of_type = kinds[0] if kinds else f"foreign {type(error).__name__}"
            outcome = {"error": name_of_type, "message": str(error)}
        return fields({**outcome, **({"log": logged} if logged else {})}, places)


def take(
    runs: dict[str, dict[str, Any]], share: float = 0.0, jobs: int = 1
) -> dict[str, dict[str, Any]]:
    """Return the outcome of every run, each from a process of its own.

    ``share`` puts that much noise on linear layers, as another processor's rounding does.
    """
    global _SHARED
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="record") as shared:
        _SHARED = shared
        zoo.save_llava(Path(shared) / "llava")
        zoo.save_llama(Path(shared) / "llama")
        write_picture(Path(shared) / "picture.png")
        for family in {run["family"] for run in runs.values() if "family" in run}:
            zoo.build(family)  # once, before processes are forked
        capabilities()  # imports all commands, once for all processes
        jitter.SHARE = share
        jitter.install()
        with get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
            started = {name: pool.apply_async(perform, (run,)) for name, run in runs.items()}
            return {name: _got(result) for name, result in started.items()}


def _got(result: Any) -> dict[str, Any]:
    try:
        outcome: dict[str, Any] = result.get(timeout=LIMIT)
    except Exception as error:
        return {"error": f"lost: {type(error).__name__}"}
    return outcome


def _in_float32(run: dict[str, Any]) -> dict[str, Any]:
    """Return the run without half precision, whose rounding differs more between machines."""
    return {**run, "dtype": "float32"} if "dtype" in run else run


def unsure(plain: dict[str, Any], noisy: dict[str, Any]) -> dict[str, list[str]]:
    """Return, for every run, the fields that the rounding of another processor may change."""
    found = {}
    for name, outcome in noisy.items():
        old = plain[name]
        names = [
            key for key in {**old, **outcome} if not same(old.get(key), outcome.get(key), False)
        ]
        if names:
            found[name] = sorted(names)
    return found


def write(runs: dict[str, dict[str, Any]], jobs: int) -> dict[str, Any]:
    """Take a new record; a second pass with noise finds what only one machine can compare."""
    plain = take(runs, jobs=jobs)
    # the noise itself takes memory, which `fit` counts
    noisy = {k: _in_float32(run) for k, run in runs.items() if run.get("words", "")[:4] != "fit "}
    record = {
        "machine": machine(),
        "runs": runs,
        "outcomes": plain,
        "unsure": unsure(plain, take(noisy, NOISE, jobs)),
        "capabilities": capabilities(),
        "repairs": {},
    }
    store(record)
    return record


def store(record: dict[str, Any]) -> None:
    """Write the record, one run a line."""
    parts = []
    for name, part in record.items():
        if isinstance(part, dict) and name != "machine":
            lines = [f"{json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in part.items()]
            parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
        else:
            parts.append(f"{json.dumps(name)}: {json.dumps(part)}")
    STORED.write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")


def stored() -> dict[str, Any]:
    """Return the record."""
    record: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return record


def differences(
    record: dict[str, Any], names: Iterable[str], jobs: int
) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield run, field, stored and new value of what differs from record and accepted repairs."""
    new = take({name: record["runs"][name] for name in names}, jobs=jobs)
    yield from compared(record, new, record["machine"] == machine())
    current = capabilities()
    for name, old in record["capabilities"].items():
        repaired = record["repairs"].get(f"capabilities/{name}", {}).get("now", {})
        lines = current.get(name, [])
        for line in sorted({*old, *lines}):
            was, now = line in old, line in lines
            if repaired.get(line, was) != now:
                yield f"capabilities/{name}", line, was, now


def compared(
    record: dict[str, Any], new: dict[str, Any], exact: bool
) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield what differs between stored and new outcomes."""
    for name, outcome in new.items():
        skipped = () if exact else record["unsure"].get(name, ())
        repair = record["repairs"].get(name, {"now": {}, "exact": exact})
        old = {**record["outcomes"][name], **repair["now"]}
        for key in sorted({*old, *outcome} - set(skipped)):
            # bits of a repair that was accepted on another machine are that machine's
            bits = exact and (repair["exact"] or key not in repair["now"])
            if not same(old.get(key), outcome.get(key), bits):
                yield name, key, old.get(key), outcome.get(key)


def matches(name: str, patterns: str) -> bool:
    """Return whether a run, or RUN:FIELD, matches one of these globs."""
    return any(fnmatch(name, pattern) for pattern in patterns.split(","))


def accept(
    record: dict[str, Any],
    found: Iterable[tuple[str, str, Any, Any]],
    patterns: str,
    because: str,
    exact: bool,
) -> int:
    """Note differences that match as repairs, with old and new value; return their number."""
    count = 0
    for name, key, old, new in found:
        if matches(name, patterns) or matches(f"{name}:{key}", patterns):
            repair = record["repairs"].setdefault(name, {"was": {}, "now": {}})
            repair |= {"because": because, "exact": exact}
            repair["was"].setdefault(key, old)
            repair["now"][key] = new
            count += 1
    return count


def told(found: Iterable[tuple[str, str, Any, Any]]) -> Iterator[str]:
    """Yield one line for each run that differs: its fields, and the values of the first."""
    by_run: dict[str, list[tuple[str, Any, Any]]] = {}
    for name, key, old, new in found:
        by_run.setdefault(name, []).append((key, old, new))
    for name, changes in by_run.items():
        key, old, new = changes[0]
        others = f" (and {', '.join(k for k, _, _ in changes[1:])[:80]})" if changes[1:] else ""
        yield f"{name}: {key}{others}: {shown(old)} -> {shown(new)}"
