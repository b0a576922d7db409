"""Patches with repeated pixels left out: tokens, time of the encoder, and answers.

    python -m benchmarks.quality.repeated_pixels [--pages 20] [--timed 6]

Draws screens (a window with a list), slides (few large lines) and scanned pages (a form under a
scanner's noise), with one question each. The demo model answers with all patches, without those
that PixelPrune leaves out, and without as many at random. A Qwen2.5-VL encoder of 8 layers with
random weights reads the same pages at 672 pixels, for its time beside the stock encoder's; the demo
model's encoder is timed, too. Times are seconds of the processor, of calls in turns. Answers are
stored one by one under benchmarks/runs/repeated_pixels, so that a later run continues; with other
weights, remove them. Writes benchmarks/results/repeated_pixels.md and .json.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLImageProcessorPil,
)

import foveate
from benchmarks.output import demo, earlier, machine, table, write
from foveate.data import files
from foveate.hf.pruning.encoder_cut import cells_of_images
from foveate.loading.model import load
from foveate.policies.pruning import PixelPrune
from foveate_demo.processor import pixel_values
from foveate_demo.scenes import BUILT_IN, WIDTH
from foveate_demo.scenes.documents import some_facts
from foveate_demo.scenes.drawing import CELL, Page, Style
from foveate_demo.scenes.words import TITLES

EXACT = "pixelprune.prune+full"
NEAR = "pixelprune.prune(tolerance=0.1,distance=rmse)+full"
LATE = "pixelprune.prune(tolerance=0.1,distance=rmse,encoder_layer=99)+full"
RUNS = Path(__file__).parents[1] / "runs" / "repeated_pixels"
ROWS = 16
NOISE = 2.0  # standard deviation of a scanner's noise, in grey levels of 256


class Drawn(NamedTuple):
    """A page with a question, and the words that answer it."""

    image: Image.Image
    question: str
    value: str


def screen(r: Random) -> Drawn:
    """Draw a window: a title bar, a panel on the left, and a list of settings."""
    page = _page(r, paper=(246, 246, 248), size=14)
    page.draw.rectangle((0, 0, WIDTH, CELL - 1), fill=(208, 212, 220))
    page.draw.rectangle((0, CELL, 2 * CELL - 1, ROWS * CELL), fill=(228, 230, 234))
    page.line(0, r.choice(TITLES), 60)
    return _with_facts(r, page, 5, 60, (2, ROWS - 1))


def slide(r: Random) -> Drawn:
    """Draw a slide: a title, and three large lines."""
    page = _page(r, paper=(236, 240, 250), size=20)
    page.line(1, r.choice(TITLES), 24)
    page.draw.rectangle((24, 3 * CELL - 4, WIDTH - 24, 3 * CELL - 2), fill=(60, 90, 160))
    return _with_facts(r, page, 3, 30, (5, ROWS - 3))


def scan(r: Random) -> Drawn:
    """Draw a scanned page: a form, with noise in every pixel."""
    drawn = _with_facts(r, _page(r, paper=(244, 243, 240), size=15), 7, 30, (1, ROWS - 1))
    pixels = np.asarray(drawn.image, dtype=np.float32)
    noise = np.random.default_rng(r.getrandbits(32)).standard_normal(pixels.shape) * NOISE
    noisy = Image.fromarray((pixels + noise).round().clip(0, 255).astype(np.uint8))
    return drawn._replace(image=noisy)


def _page(r: Random, paper: tuple[int, int, int], size: int) -> Page:
    return Page(ROWS, Style(BUILT_IN, size, (30, 30, 40), paper, 0), r)


def _with_facts(r: Random, page: Page, count: int, left: int, rows: tuple[int, int]) -> Drawn:
    facts = some_facts(r, count)
    for row, (name, value) in zip(sorted(r.sample(range(*rows), count)), facts, strict=True):
        page.line(row, f"{name}: {value}", left)
    name, value = r.choice(facts)
    return Drawn(page.image, f"What is the {name[0].lower()}{name[1:]}?", value)


KINDS: dict[str, Callable[[Random], Drawn]] = {"screen": screen, "slide": slide, "scan": scan}


def pages(kind: str, count: int) -> list[Drawn]:
    """Draw pages of a kind, the same in every run."""
    return [KINDS[kind](Random(f"repeated_pixels/{kind}/{number}")) for number in range(count)]


# The encoders' time


@contextmanager
def timed(encoder: nn.Module) -> Iterator[list[float]]:
    """Collect the seconds of the processor that each call of a module takes."""
    starts: list[float] = []
    taken: list[float] = []
    hooks = [
        encoder.register_forward_pre_hook(lambda *_: starts.append(time.process_time())),
        encoder.register_forward_hook(lambda *_: taken.append(time.process_time() - starts[-1])),
    ]
    try:
        yield taken
    finally:
        for hook in hooks:
            hook.remove()


def qwen() -> PreTrainedModel:
    """Build a Qwen2.5-VL with random weights: an encoder of 8 layers, and a decoder of one."""
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": 8,
            "hidden_size": 320,
            "intermediate_size": 856,
            "num_heads": 4,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [3, 7],
        },
        text_config={
            "vocab_size": 64,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 3, 3],
            },
        },
        image_token_id=3,
        video_token_id=4,
        vision_start_token_id=5,
        vision_end_token_id=6,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.train(mode=False)
    return model


def qwen_inputs(image: Image.Image) -> dict[str, Tensor]:
    """Return a prompt with the page at 672 pixels, for :func:`qwen`."""
    side = 672
    page = image.resize((side, side * image.height // image.width), Image.Resampling.BICUBIC)
    pixels = dict(Qwen2VLImageProcessorPil()(images=[page], return_tensors="pt"))
    tokens = int(pixels["image_grid_thw"].prod()) // 4
    ids = torch.tensor([[20, 5, *[3] * tokens, 6, 21, 22]], device="cpu")
    return {"input_ids": ids, "mm_token_type_ids": (ids == 3).int(), **pixels}


@torch.no_grad()
def encoder_times(
    model: Any, encoder: nn.Module, prompts: Sequence[Mapping[str, Tensor]], rounds: int
) -> dict[str, dict[str, float]]:
    """Measure the encoder under each spec and without one, in turns."""
    found: dict[str, list[float]] = {spec: [] for spec in ("", EXACT, NEAR)}
    shares: dict[str, list[float]] = {spec: [] for spec in found}
    for inputs in prompts:
        for spec in found:
            taken = []
            for _ in range(rounds):
                with timed(encoder) as calls:
                    share = _read(model, inputs, spec)
                taken += calls
            found[spec].append(median(taken))
            shares[spec].append(share)
    stock = found[""]
    return {
        spec: {
            "seconds": round(median(taken), 4),
            "of_stock": round(median(a / b for a, b in zip(taken, stock, strict=True)), 3),
            "tokens": round(mean(shares[spec]), 3),
        }
        for spec, taken in found.items()
    }


def _read(model: Any, inputs: Mapping[str, Tensor], spec: str) -> float:
    """Read a prompt; return the share of the visual tokens that were computed."""
    if not spec:
        model(**inputs, logits_to_keep=1)
        return 1.0
    with foveate.compress(model, spec) as session:
        session.prefill(**inputs)
        assert session.stats.computed is not None
        return float(session.stats.computed.mean())


# Answers

WAYS = {"full": "full", "exact": EXACT, "near": NEAR, "late": LATE, "random": ""}


def answers(loaded: Any, drawn: Drawn, seed: int) -> dict[str, dict[str, Any]]:
    """Answer a page's question under each spec: the text, and the share of tokens computed."""
    model, processor = loaded.model, loaded.reader
    parts = [{"type": "image", "image": drawn.image}, {"type": "text", "text": drawn.question}]
    inputs = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=True)
    found: dict[str, dict[str, Any]] = {}
    for name, spec in WAYS.items():
        if name == "random":
            share = max(0.001, found["near"]["tokens"])
            spec = f"random.prune(keep={100 * share:.4f}%,seed={seed})+full"
        with foveate.compress(model, spec) as session:
            output = model.generate(**inputs, max_new_tokens=16, do_sample=False)
            computed = session.stats.computed
        text = processor.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        found[name] = {
            "text": text.strip(),
            "right": drawn.value.casefold() in text.casefold(),
            "tokens": 1.0 if computed is None else float(computed.mean()),
        }
    return found


def answer_missing(loaded: Any, kind: str, count: int) -> None:
    """Answer the questions of a kind that have no answers yet, and store them one by one."""
    RUNS.mkdir(parents=True, exist_ok=True)
    for number, drawn in enumerate(pages(kind, count)):
        path = RUNS / f"{kind}-{number}.json"
        if not path.exists():
            files.write(path, json.dumps(answers(loaded, drawn, number)))
            print(kind, number, flush=True)


def summary(kind: str, count: int) -> dict[str, dict[str, float]]:
    """Return, for each way, the tokens left, and the numbers of equal and of right answers."""
    paths = [RUNS / f"{kind}-{number}.json" for number in range(count)]
    rows = [json.loads(path.read_text("utf-8")) for path in paths if path.exists()]
    return {
        name: {
            "pages": len(rows),
            "tokens": round(mean(row[name]["tokens"] for row in rows), 3),
            "same": sum(row[name]["text"] == row["full"]["text"] for row in rows),
            "right": sum(row[name]["right"] for row in rows),
        }
        for name in (rows[0] if rows else ())
    }


def tokens_left(kind: str, count: int) -> dict[str, float]:
    """Return the mean share of the demo model's visual tokens that is left of a kind's pages."""
    found: dict[str, list[float]] = {"exact": [], "near": []}
    for drawn in pages(kind, count):
        pixels = pixel_values([drawn.image])
        (cells,) = cells_of_images(pixels, None, CELL)
        for name, spec in (("exact", EXACT), ("near", NEAR)):
            stage = foveate.policy(spec).prune
            assert isinstance(stage, PixelPrune)
            found[name].append(1 - float(stage.repeated(cells).float().mean()))
    return {name: round(mean(shares), 3) for name, shares in found.items()}


def page(found: Mapping[str, Any]) -> str:
    """Return the page."""
    count, threads = found["pages"], found["threads"]
    lines = [
        "# Patches with repeated pixels left out",
        "",
        f"Screens, slides and scanned pages, drawn by the benchmark. Exact: `{EXACT}`. Near: "
        f"`{NEAR}`. {found['machine']}, {threads} thread, float32.",
        "",
        f"## Visual tokens left of {count} pages of each kind, with the demo model's patches",
        "",
        *table(
            ("pages", "exact", "near"),
            [
                (kind, f"{left['exact']:.0%}", f"{left['near']:.0%}")
                for kind, left in found["tokens"].items()
            ],
        ),
        "",
        f"## Answers of the {demo()}",
        "",
        "One question about each page. Same: the full prompt's text, letter by letter. Late: as "
        "near, but dropped behind the encoder, which reads all patches (`encoder_layer=99`). "
        "Random: as many tokens as near.",
        "",
    ]
    rows = []
    for kind, ways in found["answers"].items():
        for way, cell in ways.items():
            counts = (f"{cell[name]} of {cell['pages']}" for name in ("same", "right"))
            patches = "all patches" if way == "full" else way
            rows.append((kind, patches, f"{cell['tokens']:.0%}", *counts))
    lines += table(("pages", "patches", "tokens left", "same answers", "right"), rows)
    lines += ["", "## Time of the vision encoder", ""]
    lines += [
        f"Seconds of the processor, pixels compared included; medians over {found['timed']} pages "
        "of each kind. The Qwen2.5-VL has 8 layers, width 320 and random weights, and reads pages "
        "of 672 pixels.",
        "",
    ]
    ways = {"": "stock", EXACT: "exact", NEAR: "near"}
    timings = [
        (encoder, kind, ways[spec], f"{cell['tokens']:.0%}", cell["seconds"], cell["of_stock"])
        for encoder, kinds in found["encoders"].items()
        for kind, specs in kinds.items()
        for spec, cell in specs.items()
    ]
    heads = ("encoder of", "pages", "patches", "tokens left", "seconds", "of stock")
    return "\n".join([*lines, *table(heads, timings)])


def times(loaded: Any, count: int, rounds: int) -> dict[str, Any]:
    """Measure the demo model's encoder and a Qwen2.5-VL's on the first pages of each kind."""
    found: dict[str, Any] = {"the demo model": {}, "a small Qwen2.5-VL": {}}
    other = qwen()
    for kind in KINDS:
        drawn = pages(kind, count)
        prompts = [
            loaded.reader.apply_chat_template(
                [{"role": "user", "content": [{"type": "image", "image": each.image}]}],
                tokenize=True,
            )
            for each in drawn
        ]
        tower = loaded.model.model.vision_tower
        own = encoder_times(loaded.model, tower, prompts, rounds)
        inputs = [qwen_inputs(each.image) for each in drawn]
        found["the demo model"][kind] = own
        qwens = encoder_times(other, other.model.visual, inputs, rounds)
        found["a small Qwen2.5-VL"][kind] = qwens
        print(kind, own, qwens, flush=True)
    return found


def main() -> None:
    """Draw, answer and measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pages", type=int, default=20, help="pages of each kind")
    parser.add_argument("--timed", type=int, default=6, help="pages of each kind to time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("answers", "times", "page"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    before = earlier("repeated_pixels")
    found: dict[str, Any] = {**machine(), "pages": args.pages}
    found |= {name: before.get(name) for name in ("timed", "rounds", "encoders")}
    if args.only in (None, "answers"):
        loaded = load("demo")
        for kind in KINDS:
            answer_missing(loaded, kind, args.pages)
    if args.only in (None, "times"):
        found |= {"timed": args.timed, "rounds": args.rounds}
        found["encoders"] = times(load("demo"), args.timed, args.rounds)
    found["tokens"] = {kind: tokens_left(kind, args.pages) for kind in KINDS}
    found["answers"] = {kind: summary(kind, args.pages) for kind in KINDS}
    write("repeated_pixels", page(found), found)
    print(page(found))


if __name__ == "__main__":
    main()
