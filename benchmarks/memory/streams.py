"""A video without an end: memory and time of a frame, a kill in the middle, an hour of frames.

    python -m benchmarks.memory.streams [--frames 10000] [--policy SPEC]

Random models in Qwen2-VL's shape read drawn frames of 4 tokens, with `foveate.Stream`, on one
thread, whose own seconds are counted. oneDNN, which multiplies matrices for PyTorch on a CPU, keeps
code for each shape that it has met, 1,024 of them unless it is told otherwise: here 1. Each part
is a process of its own: `--part watch` notes resident memory and time; `--part kill` ends a process
by SIGKILL while it reads, loads what it saved last and goes on; `--part hour` is 3,600 frames,
eight at a time, at the head sizes of a 7B model, in 2 layers with narrow MLPs. Writes
benchmarks/results/streams.md, .json and .svg.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1")  # before torch is there

import torch
from transformers import __version__ as transformers_version

from benchmarks.memory.drawn_stream import SIDE, Processor, frame, model
from benchmarks.processes import apart
from benchmarks.written import RESULTS, write
from foveate.pictures.strips import PALETTE
from foveate.stream import Stream
from foveate_lab.bench.memory import in_use
from foveate_lab.report.charts import axes, svg

POLICY = "infinipotv:budget=256,every=64"
HOUR = "infinipotv:budget=2048,every=256"
SEVEN = {  # the heads of Qwen2-VL-7B; its MLPs are 18,944 wide
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
    "intermediate_size": 1024,
}
SAVED, KILLED, COMPARED = 250, 600, 800  # frames


def watch(spec: str, frames: int, size: int = 2, together: int = 1, **shape: int) -> dict[str, Any]:
    """Resident memory and what is held after every hundredth frame, and the time of each; so many
    are shown ``together``.
    """
    torch.set_num_threads(1)
    processor = Processor()
    stream = Stream(model(processor, **shape), processor, spec)
    marks, seconds = [], []
    for number in range(together - 1, frames, together):
        new = range(number - together + 1, number + 1)
        shown = [frame(one, size * SIDE, size * SIDE) for one in new]
        start = time.process_time()  # others use the machine, too
        held = stream.see(shown)
        seconds += [(time.process_time() - start) / together] * together
        if (number + 1) % 100 == 0:
            ms = 1e3 * median(seconds[-100:])
            marks.append({"frame": number + 1, "resident": in_use(), "ms": ms, **held._asdict()})
            print(marks[-1], file=sys.stderr, flush=True)
    answer = stream.ask("what was that?", max_new_tokens=8, do_sample=False)
    return {"policy": stream.policy.spec, "marks": marks, "answer": answer.ids.tolist()}


def reading(file: Path, frames: int) -> None:
    """Reads frames and saves every now and then; for :func:`kill`."""
    processor = Processor()
    small = model(processor)
    stream = (
        Stream.load(file, small, processor) if file.exists() else Stream(small, processor, POLICY)
    )
    print(stream.held.images, flush=True)
    for number in range(stream.held.images, frames):
        stream.see(frame(number))
        if (number + 1) % SAVED == 0:
            stream.save(file)
        print(number + 1, flush=True)
    answer = stream.ask("what was that?", max_new_tokens=8, do_sample=False)
    print(json.dumps({"held": stream.held._asdict(), "answer": answer.ids.tolist()}), flush=True)


def _reader(file: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "benchmarks.memory.streams",
        "--part",
        "reading",
        "--file",
        str(file),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill() -> dict[str, Any]:
    """The same frames read whole, and by a process that is killed and one that goes on."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = []
        for name in ("whole", "killed"):
            file = Path(folder) / f"{name}.safetensors"
            process = _reader(file)
            if name == "killed":
                for line in process.stdout or ():
                    if int(line) == KILLED:
                        process.send_signal(signal.SIGKILL)
                        break
                process.wait()
                process = _reader(file)
            out, _ = process.communicate()
            outputs.append(out.strip().splitlines())
    whole, killed = (json.loads(lines[-1]) for lines in outputs)
    for one in (whole, killed):
        del one["held"]["peak"]  # room to grow is made anew where a file is loaded
    went_on = int(outputs[1][0])
    return {"went_on_from": went_on, "same": whole == killed, "whole": whole, "killed": killed}


def plot(marks: list[dict[str, Any]]) -> str:
    """Resident memory and time of a frame against frames."""
    figure, (left, right) = axes(2)
    frames = [one["frame"] for one in marks]
    left.plot(frames, [one["resident"] / 1e6 for one in marks], color=PALETTE[0])
    right.plot(frames, [one["ms"] for one in marks], color=PALETTE[1])
    left.set(xlabel="frames", ylabel="MB in main memory", ylim=(0, None))
    right.set(xlabel="frames", ylabel="CPU ms a frame", ylim=(0, None))
    return svg(figure)


def page(found: dict[str, Any]) -> str:
    """The tables for people."""
    marks, hour, killed = found["watch"]["marks"], found["hour"]["marks"], found["kill"]
    lines = [
        "# Streams",
        "",
        f"`foveate.Stream` on {found['machine']}, one thread, torch {found['torch']}, transformers "
        f"{found['transformers']}; the machine was not idle, so times are seconds of the thread "
        "itself. Random weights, drawn frames. oneDNN, which multiplies matrices, is told to keep "
        "no code for shapes that it has met: by default it does for 1,024 of them. Main memory is "
        "counted without what the C library holds of freed blocks.",
        "",
        "![Memory and time of a frame](streams.svg)",
        "",
        f"## {marks[-1]['frame']:,} frames",
        "",
        "3 layers of a tiny Qwen2-VL, 4 tokens a frame and 2 of words, "
        f"`{found['watch']['policy']}`.",
        "",
        *_table([one for one in marks if one["frame"] in _shown(marks)]),
        "",
        "## Killed in the middle",
        "",
        f"A process that saves every {SAVED} frames is ended by SIGKILL at frame {KILLED}; another "
        f"loads what is there and goes on from frame {killed['went_on_from']} to {COMPARED}. What "
        "is held then, and the answer to a question, "
        + ("are" if killed["same"] else "are **not**")
        + " those of a process that read all of it.",
        "",
        "## An hour",
        "",
        f"{hour[-1]['frame']:,} frames of 4 tokens and 2 of words, a second each, eight at a time; "
        "28 query and 4 KV heads of 128 channels, 2 layers, float32, MLPs 1,024 wide; "
        f"`{found['hour']['policy']}`. The bound is what `held.bound` says.",
        "",
        *_table([one for one in hour if one["frame"] in _shown(hour)]),
    ]
    return "\n".join(lines)


def _shown(marks: list[dict[str, Any]]) -> set[int]:
    last = marks[-1]["frame"]
    return {100, 1000, last // 4, last // 2, last}


def _table(marks: list[dict[str, Any]]) -> list[str]:
    rows = [
        f"| {one['frame']:,} | {one['resident'] / 1e6:.1f} | {one['ms']:.1f} | {one['seen']:,} | "
        f"{one['tokens']:.0f} | {one['bytes'] / 1e6:.2f} | {one['peak'] / 1e6:.2f} | "
        f"{one['bound'] / 1e6:.2f} |"
        for one in marks
    ]
    heads = (
        "| frames | MB in main memory | CPU ms a frame | tokens seen | held | KV MB | peak | "
        "bound |",
        "|---|---|---|---|---|---|---|---|",
    )
    return [*heads, *rows]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--policy", default=POLICY)
    parser.add_argument(
        "--part", choices=("all", "watch", "hour", "kill", "reading"), default="all"
    )
    parser.add_argument("--file", type=Path, default=Path())
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.part == "reading":
        reading(given.file, COMPARED)
    elif given.part == "watch":
        print(json.dumps(watch(given.policy, given.frames)))
    elif given.part == "hour":
        print(json.dumps(watch(HOUR, 3600, 2, together=8, **SEVEN)))
    elif given.part == "kill":
        print(json.dumps(kill()))
    else:
        found: dict[str, Any] = {
            "watch": apart(watch, given.policy, given.frames),
            "kill": apart(kill),
            "hour": apart(watch, HOUR, 3600, 2, together=8, **SEVEN),
            "machine": platform.machine(),
            "torch": torch.__version__,
            "transformers": transformers_version,
        }
        write("streams", page(found), found)
        (RESULTS / "streams.svg").write_text(plot(found["watch"]["marks"]), encoding="utf-8")


if __name__ == "__main__":
    main()
