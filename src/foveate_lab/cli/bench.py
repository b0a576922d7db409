"""``foveate bench``: time and memory of methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from inspect import signature
from shutil import which
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.progress import MofNCompleteColumn, TimeRemainingColumn
from rich.text import Text

from foveate.cli import console, options
from foveate.cli.options import model_option
from foveate.defaults import READS
from foveate.errors import InvalidInput
from foveate_lab.cli import bench_suite

if TYPE_CHECKING:
    from foveate_lab.bench import Subject

SHAPES = "llava-1.5-7b, llava-1.5-13b, qwen2-vl-7b, internvl3-8b"
LONG = 4096
METHODS = ("recommended", "snapkv")  # by default: about two minutes on two cores


def benchmark(
    model: Annotated[str, model_option(READS)] = READS,
    dims: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Model shape with random weights to measure: {SHAPES}."),
    ] = None,
    layers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of layers of --dims, e.g. 4.")
    ] = None,
    tokens: Annotated[
        int, typer.Option(metavar="N", min=128, help="Prompt length in tokens, e.g. 4096.")
    ] = 512,
    method: options.Specs = None,
    budget: Annotated[
        list[str] | None,
        typer.Option(metavar="B", help="Budget of each method, e.g. 20%, 256 or 64MB; repeatable."),
    ] = None,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="Rounds per median, e.g. 5.")] = 3,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens to decode, e.g. 64.")] = 32,
    memory: Annotated[
        str | None,
        typer.Option(
            metavar="BYTES",
            help="Memory for a batch's caches, e.g. 8GB. [default: 80% of the GPU's free "
            "memory; on a CPU no batch is measured]",
            show_default=False,
        ),
    ] = None,
    against: Annotated[
        Literal["kvpress"] | None,
        typer.Option(help="Other library to measure, too: kvpress."),
    ] = None,
    peer_python: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Python that has --against, e.g. venv/bin/python."),
    ] = None,
    trust_remote_code: options.TrustRemoteCode = False,
    device_map: options.DeviceMap = None,
    dtype: options.Dtype = "auto",
    suite: bench_suite.Suite = None,
    out: bench_suite.Out = None,
    part: bench_suite.PartNames = None,
    anew: bench_suite.Anew = False,
    device: bench_suite.Device = "cuda",
    quick: bench_suite.Quick = False,
    kernels: bench_suite.Kernels = None,
    json: console.Json = False,
) -> None:
    """Measure what methods add to the prefill, and what they save in decoding and memory.

    Ratios are medians over rounds: of prefills to the stock prefill, of decoding to a preallocated
    full cache. The prompt is prose, of which the middle half counts as visual. The default methods
    are recommended and snapkv, at 20%.

    With --suite gpu, the command instead runs all benchmarks that need a CUDA GPU, in parts, and
    writes one page. Later runs keep the results of finished parts. The exit status is 1 if a kernel
    differs from its reference, or a test fails.
    """
    bench_suite.check(_changed(locals()), suite)
    if suite is not None:
        bench_suite.suite_run(
            device=device,
            quick=quick,
            kernels=kernels,
            peer_python=peer_python,
            out=out,
            part=part or [],
            anew=anew,
            json=json,
        )
        return
    import torch

    from foveate.cli.policies import policies
    from foveate.loading.model import load
    from foveate_lab.bench import bench, of_dims, of_model
    from foveate_lab.bench.measure import ticks
    from foveate_lab.bench.peer import alone, kvpress
    from foveate_lab.cli import bench_table

    chosen = policies(method or METHODS, budget or [])
    room = None if memory is None else options.bytes_of("--memory", memory)
    if room is None and not torch.cuda.is_available():
        room = 0
    if (against is None) != (peer_python is None):
        raise InvalidInput("--against and --peer-python go together: give both, or neither.")
    if peer_python is not None and which(peer_python) is None:
        raise InvalidInput(
            f"--peer-python {peer_python!r} is not a program: give the Python that has --against "
            "installed, such as /path/to/venv/bin/python."
        )
    if dims is None and layers is not None:
        raise InvalidInput(f"--layers {layers} needs --dims: add --dims, or leave it out.")
    if dims is not None and (device_map, dtype) != (None, "auto"):
        raise InvalidInput(
            "--dims has random bfloat16 weights: leave --device-map and --dtype out."
        )
    with console.progress(hidden=json) as bars:
        task = bars.add_task("loading", total=None)
        if dims:
            subject = of_dims(dims, tokens, layers=layers)
        else:
            subject = of_model(load(model, trust_remote_code, device_map, dtype), tokens)
        bars.remove_task(task)
    with console.bars(MofNCompleteColumn(), TimeRemainingColumn(), hidden=json) as bars:
        task = bars.add_task("measuring", total=ticks(len(chosen), rounds))
        rows = bench(
            subject,
            chosen,
            rounds=rounds,
            steps=steps,
            memory=room,
            tick=lambda: bars.advance(task),
        )
    peers: list[dict[str, Any]] = []
    if peer_python is not None:
        with console.progress(hidden=json) as bars:
            bars.add_task("measuring kvpress", total=None)
            peers = kvpress(subject, chosen, peer_python, rounds=rounds, steps=steps)
    if json:
        result = {"rows": [asdict(row) for row in rows], "kvpress": peers}
        console.print_json({**_environment(subject, rounds, steps), **result})
        return
    console.show(_head(subject), "", *bench_table.of(rows))
    if peers:
        console.show(Text("\nkvpress:"), bench_table.peers(peers))
    if peer_python is not None and (without := alone(chosen)):
        console.show(Text(f"kvpress has no press for {', '.join(without)}."))
    console.show(
        Text(
            "\nPrefill ratio: to the stock prefill. Decode ratio: to full, Foveate's cache with "
            "everything kept, which is preallocated."
        )
    )
    console.show(_left_out(method, room, tokens))
    if not dims:
        typer.echo(f"Next: foveate eval --model {model} --out results")


def _changed(values: Mapping[str, Any]) -> list[str]:
    """Return the names of the options that differ from their defaults."""
    options = signature(benchmark).parameters
    return [name for name in options if values[name] != options[name].default]


def _environment(subject: Subject, rounds: int, steps: int) -> dict[str, Any]:
    import torch

    from foveate.loading.hardware import processor, versions

    return {
        "model": subject.name,
        "layers": subject.model.config.get_text_config().num_hidden_layers,
        "random_weights": subject.random,
        "tokens": subject.ids.shape[1],
        "dtype": str(subject.model.dtype).removeprefix("torch."),
        "device": processor(subject.device),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "steps": steps,
        "versions": versions("foveate", "torch", "transformers"),
    }


def _head(subject: Subject) -> Text:
    facts = _environment(subject, 0, 0)
    drawn = ", random weights" if subject.random else ""
    return Text(
        f"{subject.name}, {facts['layers']} layers{drawn}, {facts['dtype']}, on "
        f"{facts['device']} with {facts['threads']} threads: a prompt of {facts['tokens']:,} tokens"
    )


def _left_out(method: list[str] | None, room: int | None, tokens: int) -> Text:
    """List what was not measured, with the options that measure it."""
    hints = []
    if not method:
        hints.append("other methods (--method mixkv --method kvzip)")
    if room == 0:
        hints.append("batches (--memory 1GiB)")
    if tokens < LONG:
        hints.append(f"longer prompts, where decoding gains more (--tokens {LONG})")
    return Text(f"\nLeft out: {', '.join(hints)}." if hints else "")
