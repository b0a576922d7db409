"""Quality and bytes of kept pairs that are stored in few bits.

    python -m benchmarks.quality.quantised [--tokens 4096]

Prefills a text with the 16-bit model, keeps 20 % of it by SnapKV in several layouts, and predicts
the 256 tokens that follow. Writes benchmarks/results/quantised.md and .json.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import PreTrainedModel

import foveate
from benchmarks.output import write
from foveate.hf.model.internals import CACHE
from foveate_demo import smollm2
from foveate_lab.bench.subject import prose

FOLLOWING = 256
KEEP = "snapkv{}:budget=20%,window=64"
LAYOUTS = [
    (bits, group, residual)
    for bits in (8, 4, 2)
    for group, residual in ((32, 128), (32, 32), (64, 32), (128, 16))
]
TURBO = [f"turboquant(bits={bits})" for bits in (4, 3, 2)]
TURBO += [f"turboquant(bits={bits},sketch=true)" for bits in (4, 3)]
TURBO += ["turboquant(bits=4,residual=32)"]


@torch.inference_mode()
def measure(model: PreTrainedModel, spec: str, ids: torch.Tensor, tokens: int) -> dict[str, Any]:
    """Return bytes after the prefill, and logits of the following tokens, fed one by one."""
    logits = []
    with foveate.compress(model, spec) as session:
        cache = session.prefill(input_ids=ids[:, :tokens])
        stats = session.stats
        for i in range(FOLLOWING):
            token = ids[:, tokens + i : tokens + i + 1]
            logits.append(model(input_ids=token, **{CACHE: cache}).logits[0, -1].float())
        end = session.bytes_held
    found = torch.stack(logits)
    loss = torch.nn.functional.cross_entropy(found[:-1], ids[0, tokens + 1 : tokens + FOLLOWING])
    return {
        "spec": spec,
        "share": stats.bytes_after / stats.bytes_before,
        "bytes_at_end": end,
        "nll": float(loss),
        "logits": found,
    }


def compared(row: dict[str, Any], plain: dict[str, Any]) -> dict[str, Any]:
    """Replace a row's logits by their distance to those of unquantised pairs."""
    own, other = row.pop("logits"), plain["logits"]
    row["same_token"] = float((own.argmax(-1) == other.argmax(-1)).float().mean())
    p, q = other.log_softmax(-1), own.log_softmax(-1)
    row["kl"] = float((p.exp() * (p - q)).sum(-1).mean())
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """Return a Markdown table."""
    head = [
        "policy",
        "KV bytes, % of full",
        f"NLL of the next {FOLLOWING}",
        "same next token",
        "KL to unquantised",
    ]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for row in rows:
        lines.append(
            f"| `{row['spec']}` | {100 * row['share']:.2f} | {row['nll']:.3f} | "
            f"{100 * row['same_token']:.0f} % | {row['kl']:.4f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure every layout, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=4096)
    tokens = parser.parse_args().tokens
    model, tokenizer = smollm2.load(torch.bfloat16)
    ids = prose(tokenizer, tokens + FOLLOWING)
    plain = measure(model, KEEP.format(""), ids, tokens)
    rows = [compared(measure(model, "full", ids, tokens), plain)]
    stores = [f"kivi(bits={b},group={group},residual={rest})" for b, group, rest in LAYOUTS]
    for store in (*stores, *TURBO):
        spec = KEEP.format(f"+{store}")
        rows.append(compared(measure(model, spec, ids, tokens), plain))
        print(table(rows[-1:]), flush=True)
    rows.insert(1, compared(plain, {"logits": plain["logits"]}))
    head = (
        f"# Kept pairs in few bits\n\nSmolLM2-135M-Instruct, bfloat16, CPU; {tokens:,} tokens of "
        "English prose, then what follows, read one by one. Bytes are all that the cache holds "
        "right after the prefill, codes, scales, residual and positions, over those of the full "
        "16-bit cache. The last two columns compare with the same pairs in 16 bits.\n\n"
    )
    write("quantised", head + table(rows), rows)


if __name__ == "__main__":
    main()
