"""Endless video: memory and time per frame, a kill in the middle, an hour of frames.

    python -m benchmarks.memory.streams [--frames 10000] [--policy SPEC]

Random models in Qwen2-VL's shape read random frames of 4 tokens with `foveate.Stream` on one
thread; times are CPU seconds of that thread. oneDNN caches code per matrix shape, 1,024 shapes by
default, here 1. Each part is a process of its own: `--part watch` records resident memory and time;
`--part kill` ends a process by SIGKILL while it reads, loads what it saved last and continues;
`--part hour` is 3,600 frames, eight at a time, at the head sizes of a 7B model, in 2 layers with
narrow MLPs. Writes benchmarks/results/streams.md, .json and .svg.
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

os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1")  # before torch is imported

import torch
from transformers import __version__ as transformers_version

from benchmarks.memory.drawn_stream import SIDE, Processor, frame, model
from benchmarks.output import RESULTS, write
from benchmarks.processes import apart
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
    """Record resident memory and stored pairs every hundredth frame, and the time per frame.
    ``together`` frames are shown at once.
    """
    torch.set_num_threads(1)
    processor = Processor()
    stream = Stream(model(processor, **shape), processor, spec)
    marks, seconds = [], []
    for number in range(together - 1, frames, together):
        new = range(number - together + 1, number + 1)
        images = [frame(index, size * SIDE, size * SIDE) for index in new]
        start = time.process_time()  # CPU time, because others use the machine
        state = stream.see(images)
        seconds += [(time.process_time() - start) / together] * together
        if (number + 1) % 100 == 0:
            ms = 1e3 * median(seconds[-100:])
            marks.append({"frame": number + 1, "resident": in_use(), "ms": ms, **state._asdict()})
            print(marks[-1], file=sys.stderr, flush=True)
    answer = stream.ask("what was that?", max_new_tokens=8, do_sample=False)
    return {"policy": stream.policy.spec, "marks": marks, "answer": answer.ids.tolist()}


def reading(file: Path, frames: int) -> None:
    """Read frames and save regularly; for :func:`kill`."""
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
    """Compare an uninterrupted process with one that is killed and resumed."""
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
    uninterrupted, killed = (json.loads(lines[-1]) for lines in outputs)
    for result in (uninterrupted, killed):
        del result["held"]["peak"]  # loading a file allocates new room
    went_on = int(outputs[1][0])
    return {
        "went_on_from": went_on,
        "same": uninterrupted == killed,
        "whole": uninterrupted,
        "killed": killed,
    }


def plot(marks: list[dict[str, Any]]) -> str:
    """Plot resident memory and time per frame against frames."""
    figure, (left, right) = axes(2)
    frames = [mark["frame"] for mark in marks]
    left.plot(frames, [mark["resident"] / 1e6 for mark in marks], color=PALETTE[0])
    right.plot(frames, [mark["ms"] for mark in marks], color=PALETTE[1])
    left.set(xlabel="frames", ylabel="MB in main memory", ylim=(0, None))
    right.set(xlabel="frames", ylabel="CPU ms a frame", ylim=(0, None))
    return svg(figure)


def page(found: dict[str, Any]) -> str:
    """Return the page."""
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
        *_table([mark for mark in marks if mark["frame"] in _selected(marks)]),
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
        *_table([mark for mark in hour if mark["frame"] in _selected(hour)]),
    ]
    return "\n".join(lines)


def _selected(marks: list[dict[str, Any]]) -> set[int]:
    last = marks[-1]["frame"]
    return {100, 1000, last // 4, last // 2, last}


def _table(marks: list[dict[str, Any]]) -> list[str]:
    rows = [
        f"| {mark['frame']:,} | {mark['resident'] / 1e6:.1f} | {mark['ms']:.1f} | "
        f"{mark['seen']:,} | {mark['tokens']:.0f} | {mark['bytes'] / 1e6:.2f} | "
        f"{mark['peak'] / 1e6:.2f} | {mark['bound'] / 1e6:.2f} |"
        for mark in marks
    ]
    heads = (
        "| frames | MB in main memory | CPU ms a frame | tokens seen | held | KV MB | peak | "
        "bound |",
        "|---|---|---|---|---|---|---|---|",
    )
    return [*heads, *rows]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--policy", default=POLICY)
    parser.add_argument(
        "--part", choices=("all", "watch", "hour", "kill", "reading"), default="all"
    )
    parser.add_argument("--file", type=Path, default=Path())
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.part == "reading":
        reading(args.file, COMPARED)
    elif args.part == "watch":
        print(json.dumps(watch(args.policy, args.frames)))
    elif args.part == "hour":
        print(json.dumps(watch(HOUR, 3600, 2, together=8, **SEVEN)))
    elif args.part == "kill":
        print(json.dumps(kill()))
    else:
        found: dict[str, Any] = {
            "watch": apart(watch, args.policy, args.frames),
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
