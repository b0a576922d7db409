"""Predictions of ``foveate fit`` against measurements: weights, tower, prefill and KV cache.

    python -m benchmarks.memory.fit [--only NAME ...]

Seven kinds of models with random weights, hundreds of megabytes each, in float32 on a CPU. Each
runs in its own process and is measured by resident memory (Linux with glibc). Folders contain
config.json and the image processor's configuration, which is all that ``foveate.memory.fit`` reads;
images are noise. Results are written at once, and a run with the same versions continues the last
one. Writes benchmarks/results/fit.md and .json.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import (
    AutoImageProcessor,
    AutoModelForImageTextToText,
    DynamicCache,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from benchmarks.memory.fit_models import MODELS, Sample
from benchmarks.output import earlier, write
from benchmarks.processes import apart
from foveate.defaults import AttentionName
from foveate.hf.layer.support import text_config
from foveate.hf.model.decoder import find
from foveate.hf.model.internals import CACHE, last_logits
from foveate.loading.hardware import versions
from foveate.memory import Request
from foveate.memory.attention import use_attention
from foveate.memory.model import bare, weights
from foveate.memory.processors.inputs import prompt, takes
from foveate.memory.trace import trace
from foveate_lab.bench import processor
from foveate_lab.bench.memory import CLEAR, freed_at_once, in_use, resident

PARTS = ("weights", "tower", "prefill", "KV cache")
ATTENTIONS: tuple[AttentionName, ...] = ("sdpa", "eager")


@dataclass(frozen=True)
class Row:
    """Predicted and measured bytes of each part, for one model and attention."""

    model: str
    attention: str
    tokens: int
    visual: int
    foretold: Mapping[str, int]
    measured: Mapping[str, int]


def main() -> None:
    """Measure missing rows, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    names = parser.parse_args().only
    rows = known()
    for attention in ATTENTIONS:
        for name in names:
            if any((row.model, row.attention) == (name, attention) for row in rows):
                continue
            rows.append(apart(measured, name, attention))
            print(rows[-1], flush=True)
            write("fit", page(rows), {"versions": facts(), "rows": [asdict(row) for row in rows]})


def facts() -> dict[str, str]:
    """Return the versions that figures depend on."""
    return dict(versions("torch", "transformers"))


def known() -> list[Row]:
    """Return the rows of an earlier run with the same versions."""
    found = earlier("fit")
    return [Row(**row) for row in found["rows"]] if found.get("versions") == facts() else []


@torch.no_grad()
def measured(name: str, attention: AttentionName) -> Row:
    """Measure one row, in a process that has done nothing else."""
    torch.set_num_threads(1)
    sample = MODELS[name]()
    request = replace(sample.request, attention=attention)
    with tempfile.TemporaryDirectory() as folder:
        sample.config.save_pretrained(folder)
        sample.processor.save_pretrained(folder)
        bare_model = bare(folder, "float32")
        foretold = trace(bare_model, request)
        reader: Any = AutoImageProcessor
        pixels = dict(reader.from_pretrained(folder)(noise(request), return_tensors="pt"))
    inputs = prompt(bare_model, request, foretold.visual // request.images)
    predicted = (weights(bare_model).bytes, foretold.tower, foretold.activations, foretold.cache)
    found = peaks(sample, inputs, pixels, attention)
    return Row(
        name,
        attention,
        foretold.tokens,
        foretold.visual,
        dict(zip(PARTS, predicted, strict=True)),
        dict(zip(PARTS, found, strict=True)),
    )


def noise(request: Request) -> list[Image.Image]:
    """Draw images, no two alike."""
    width, height = request.size or (0, 0)
    drawn = np.random.default_rng(0)
    shape = (height, width, 3)
    return [Image.fromarray(drawn.integers(0, 256, shape, np.uint8)) for _ in range(request.images)]


def peaks(
    sample: Sample,
    inputs: Mapping[str, Tensor],
    pixels: Mapping[str, Any],
    attention: AttentionName,
) -> tuple[int, int, int, int]:
    """Return resident bytes: weights, tower's peak, decoder's peak without KV cache, KV cache."""
    model, weight_bytes = grown(lambda: drawn(sample))
    seen = takes(model.forward, pixels)
    decoder = find(model, text_config(model)).decoder
    marks: list[int] = []

    def mark(*_: Any) -> None:
        marks.append(resident("VmHWM"))
        CLEAR.write_text("5")

    def read() -> DynamicCache:
        cache = DynamicCache(config=text_config(model))
        own = {name: value.clone() for name, value in {**inputs, **seen}.items()}
        model(**own, **{CACHE: cache}, **last_logits(model, inputs), use_cache=True)
        marks.append(resident("VmHWM"))
        return cache

    with use_attention(model, attention), freed_at_once():
        read()  # libraries allocate their own buffers in the first call
        marks.clear()
        hook = decoder.register_forward_pre_hook(mark)
        CLEAR.write_text("5")
        before = in_use()
        cache = read()
        hook.remove()
        pairs = in_use() - before
        del cache
    tower, prefill = (peak - before for peak in marks)
    return weight_bytes, tower, prefill - pairs, pairs


def grown(make: Callable[[], PreTrainedModel]) -> tuple[PreTrainedModel, int]:
    """Build a model; return it with the growth of the process."""
    with freed_at_once():
        before = in_use()
        model = make()
        return model, in_use() - before


def drawn(sample: Sample) -> PreTrainedModel:
    """Build the model with random weights."""
    auto: Any = AutoModelForImageTextToText
    with no_init_weights():
        model: PreTrainedModel = auto.from_config(sample.config, dtype=torch.float32)
    model.tie_weights()  # skipped together with the initialisation
    for weight in model.parameters():
        weight.uniform_(-0.02, 0.02)
    return model.eval()  # type: ignore[no-untyped-call, no-any-return]


def page(rows: Sequence[Row]) -> str:
    """Return the page: a table, in megabytes."""
    apart = [abs(row.foretold[part] / row.measured[part] - 1) for row in rows for part in PARTS]
    lines = [
        "# What foveate fit foretells",
        "",
        f"One thread of {processor(torch.device('cpu'))}, torch {facts()['torch']}, transformers "
        f"{facts()['transformers']}, float32, drawn weights. Foretold from config.json and the "
        "image processor's configuration, and measured by the resident memory of a process; MB are "
        "10^6 bytes. The tower's peak counts pixels; the prefill's leaves out weights and KV cache."
        f" Of {len(apart)} figures the farthest is {max(apart):.1%} from what was measured.",
        "",
        "| model | attention | tokens, visual | " + " | ".join(f"{p}, MB" for p in PARTS) + " |",
        "|---|---|---|" + "---|" * len(PARTS),
    ]
    for row in rows:
        figures = [_against(row.foretold[part], row.measured[part]) for part in PARTS]
        cells = f"{row.model} | {row.attention} | {row.tokens:,}, {row.visual:,}"
        lines.append(f"| {cells} | {' | '.join(figures)} |")
    return "\n".join(lines)


def _against(foretold: int, measured: int) -> str:
    return f"{foretold / 1e6:,.1f} : {measured / 1e6:,.1f} ({foretold / measured:.3f})"


if __name__ == "__main__":
    main()
