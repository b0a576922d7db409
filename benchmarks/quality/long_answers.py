"""A long answer under policies that compress while decoding: quality, and bytes, over time.

    python -m benchmarks.quality.long_answers [--tokens 512] [--prompts 2] [--budget 25%]

SmolLM2-135M-Instruct reads some pages of Python's manual and is asked to explain them. It answers
with the full cache, drawn at a temperature below one, and without the token that would
end it; every policy is then told that answer, token by token, and compresses as its rule says.
Writes benchmarks/results/long_answers.md and .json. On one thread, all prompts in one batch.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import __version__ as transformers_version

import foveate
from benchmarks.written import write
from foveate.backends.hf import Recording, branch, compress, record
from foveate.backends.hf.follow_up import ends
from foveate.eval.model import READS, Loaded, load
from foveate.eval.over_time import TokenLosses, answered, token_losses
from foveate.eval.tasks.text_needle import manual

READ = 512  # tokens of a prompt
TEMPERATURE = 0.8  # so small a model repeats itself at 0.7, and loses its thread at 1
PARTS = 4  # of the answer, for what changes over time
ASKED = "Explain the following pages of a manual at length, step by step:\n\n"
POLICIES = (
    "h2o:when=over_budget",
    "streaming_llm:when=over_budget",
    "prefixkv:when=fixed_slot",
    "rkv",
    "snapkv:window=8,when=over_budget(every=128)",  # R-KV's importance without its redundancy
)


def prompts(loaded: Loaded, count: int) -> Tensor:
    """Equally long ones: the manual's words are cut to what the chat template leaves."""
    place = "\ufffc"
    message = [{"role": "user", "content": f"{ASKED}{place}"}]
    worded = loaded.tokenizer.apply_chat_template(
        message, tokenize=False, add_generation_prompt=True
    )
    before, after = (_tokens(loaded, part) for part in worded.split(place))
    rows = []
    for number in range(count):
        start = Random(f"long_answers/{number}").randrange(len(manual()) - READ)
        pages = _tokens(loaded, " ".join(manual()[start : start + READ]))
        rows.append([*before, *pages[: READ - len(before) - len(after)], *after])
    return torch.tensor(rows)


def _tokens(loaded: Loaded, text: str) -> list[int]:
    found: list[int] = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    return found


def answer(loaded: Loaded, recording: Recording, length: int) -> tuple[Tensor, TokenLosses]:
    """The full cache's own."""
    with compress(loaded.model, "full") as session:
        cache = branch(session, recording)
        return answered(
            session,
            cache,
            recording.logits,
            length,
            temperature=TEMPERATURE,
            without=ends(loaded.model),
        )


def heard(loaded: Loaded, ids: Tensor, spec: str, tokens: Tensor) -> TokenLosses:
    """What a policy thinks of the full cache's answer."""
    policy = foveate.policy(spec)
    recording = record(loaded.model, sums=policy.reads_column_sums, input_ids=ids)
    with compress(loaded.model, policy) as session:
        cache = branch(session, recording)
        return token_losses(session, cache, recording.logits, tokens)


def measured(spec: str, mine: TokenLosses, full: TokenLosses) -> dict[str, Any]:
    """One policy's numbers; bytes are those of one row, after the prompt and every 16 tokens."""
    rows, length = mine.nll.shape
    size = length // PARTS
    held = [each // rows for each in mine.held]
    return {
        "policy": spec,
        "perplexity": mine.perplexity(),
        "agreement": mine.agreement(full),
        "perplexity_by_part": [
            mine.perplexity(part * size, (part + 1) * size) for part in range(PARTS)
        ],
        "perplexity_by_prompt": mine.nll.double().mean(1).exp().tolist(),
        "bytes_after_prompt": held[0],
        "bytes_at_end": held[-1],
        "bytes_at_most": max(held),
        "bytes": held[::16],
    }


def page(found: Sequence[dict[str, Any]], facts: dict[str, Any]) -> str:
    """The table for people."""
    length = facts["tokens"]
    lines = [
        "# Long answers",
        "",
        f"{facts['model']}, {facts['dtype']}, {facts['prompts']} prompts of {READ} tokens (pages "
        f"of Python's manual, to be explained), answers of {length} tokens: the full cache's own, "
        f"drawn at temperature {TEMPERATURE}. Every policy is told that answer token by token. "
        "Perplexity is of its tokens; agreement is the share of places at which the likeliest "
        "token is the full cache's. MB are those of one answer, with all that the policy "
        f"remembers. torch {facts['torch']}, transformers {facts['transformers']}.",
        "",
        "| policy | perplexity | "
        + " | ".join(f"part {part + 1}" for part in range(PARTS))
        + " | agreement | MB after the prompt | at most | at the end |",
        "|---|---|" + "---|" * PARTS + "---|---|---|---|",
    ]
    for one in found:
        parts = " | ".join(f"{x:.2f}" for x in one["perplexity_by_part"])
        size = [
            f"{one[f'bytes_{when}'] / 1e6:.2f}" for when in ("after_prompt", "at_most", "at_end")
        ]
        lines.append(
            f"| `{one['policy']}` | {one['perplexity']:.2f} | {parts} | {one['agreement']:.3f} | "
            f"{' | '.join(size)} |"
        )
    lines += [
        "",
        f"A part is {length // PARTS} tokens. `fixed_slot` keeps a share of the whole sequence, so "
        "its cache grows with the answer, as the full one does; the other rules hold what the "
        "budget allows of the prompt.",
    ]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tokens", type=int, default=512, help="of an answer")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--budget", default="25%")
    given = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load(READS)
    ids = prompts(loaded, given.prompts)
    tokens, full = answer(loaded, record(loaded.model, sums=False, input_ids=ids), given.tokens)
    facts = {
        "model": loaded.name,
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "tokens": given.tokens,
        "prompts": given.prompts,
        "torch": torch.__version__,
        "transformers": transformers_version,
        "python": platform.python_version(),
    }
    said = loaded.tokenizer.batch_decode(tokens)
    found = [measured("full", full, full)]
    for spec in POLICIES:
        name, _, rest = spec.partition(":")
        budgeted = ",".join(filter(None, (f"{name}:budget={given.budget}", rest)))
        found.append(measured(budgeted, heard(loaded, ids, budgeted, tokens), full))
        print(found[-1], flush=True)
        write("long_answers", page(found, facts), {**facts, "answers": said, "policies": found})


if __name__ == "__main__":
    main()
