"""Page of long_contexts.py's results."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

QUADRATIC = """What is not linear in the prompt, and why:

* `lookm` and other merging by cosine at a share of the prompt: every pair is compared with every
  kept one, which is what LOOK-M's section 3.3 says. With a fixed number of pairs kept, as above, it
  is linear.
* `csp`, `david` and `nacl` with windows that are a share of the budget, `vl_cache`, `tgv_kv` and
  `aircache` (all text queries), `meda`, `roco` and `keyformer` (all queries): their scores are
  attention. For `csp`, `david` and what reads column sums the model's own attention makes it on its
  way, which is not counted here.
* `divprune` (each kept token is the farthest from those before it) and `rkv` (every key with every
  other)."""


RATIOS = [
    "| tokens | policy | prefill, to stock | stages alone | stock, s |",
    "|---|---|---|---|---|",
]


def page(
    found: dict[str, Any],
    ends: tuple[int, int],
    chunk: int,
    cap: int,
    pair_bytes: Callable[[str, int], int],
) -> str:
    """Return the page of all parts that have been measured."""
    of = {
        part: {name.partition("/")[2]: value for name, value in found["figures"].items()
               if name.startswith(f"{part}/")}
        for part in ("alone", "chunks", "prefill", "half")
    }  # fmt: skip
    first, last = ends
    return "\n".join([
        "# Long contexts", "",
        f"{found['threads']} threads of {found['machine']}, torch {found['torch']}, transformers "
        f"{found['transformers']}. Weights and tokens are drawn. How decoding grows stands in "
        "[scaling.md](scaling.md).", "",
        "## The policies' own work", "",
        "Score, budget, selection, merge and storage of one layer with 28 query heads and 4 KV "
        "heads of 128 in float32, its attention having been done; milliseconds of one thread, by "
        f"the process's own clock. Tokens grow {last / first:.0f} times.", "",
        f"| policy | {first:,} tokens | {last:,} | times |", "|---|---|---|---|",
        *(f"| `{spec}` | {row['first_ms']:.1f} | {row['last_ms']:.1f} | {row['grows']:.1f} |"
          for spec, row in of["alone"].items()), "",
        QUADRATIC, "",
        "## Prompts in chunks", "",
        f"In chunks of {chunk:,} tokens, float32: peaks in MB beyond that of the same chunks "
        "without any cache, each in a process of its own. `qwen2-vl-7b` has two layers of that "
        "model's attention, with an MLP of a sixteenth; `smollm2-135m` three layers. The bound is "
        "1.3 times one layer's full pairs and what is kept of all layers. Chunks pass through all "
        "layers, so without a rule that compresses on the way every layer is held whole until the "
        f"prompt ends; with `over_budget` none ever holds more than {cap:,} pairs and two chunks.",
        "",
        "| shape | tokens | policy | peak | kept | all layers' pairs | bound |",
        "|---|---|---|---|---|---|---|", *_chunks(of["chunks"], pair_bytes), "",
        "## What window methods add to a prefill", "",
        "`smollm2-135m`'s shape, three layers, float32, in one pass; each prefill between two "
        "stock ones, and the stages' own time as a share of a stock prefill, which a machine that "
        "others use disturbs less.", "", *_ratios(of["prefill"], "prefill"), "",
        "## Column sums in bfloat16", "",
        "The same at 4,096 tokens, in bfloat16 and in float32. Aim: 1.2.", "",
        *_ratios(of["half"], "half"),
    ])  # fmt: skip


def _chunks(found: dict[str, Any], pair_bytes: Callable[[str, int], int]) -> Iterator[str]:
    layers = {"qwen2-vl-7b": 2, "smollm2-135m": 3}
    for name, row in found.items():
        shape, tokens, spec = name.split("/", 2)
        if spec == "none":
            continue
        base, size = found[f"{shape}/{tokens}/none"], pair_bytes(shape, int(tokens))
        yield (
            f"| {shape} | {int(tokens):,} | `{spec}` | {_mb(row['peak'] - base['peak'])} | "
            f"{_mb(row['kept'])} | {_mb(layers[shape] * size)} | {_mb(1.3 * size + row['kept'])} |"
        )


def _ratios(found: dict[str, Any], part: str) -> Iterator[str]:
    if not found:
        yield f"Not measured yet: `--only {part}`."
        return
    yield from RATIOS
    for tokens, rows in found.items():
        for spec, row in rows.items():
            yield (
                f"| {tokens} | `{spec}` | {row['ratio']:.3f} | {row['stages']:.2%} | "
                f"{row['stock_s']:.2f} |"
            )


def _mb(count: float) -> str:
    return f"{count / 1e6:.0f}"
