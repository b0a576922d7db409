"""Comparison of methods on the demo model: held-out questions, answered from compressed caches.

    python -m training.compare [--count 50] [--out FILE]

The oracle keeps four tokens at each end of the prompt, the rows with the answer, and then the last
tokens; all methods keep the last 12 tokens of the prompt. The questions are those of
``training.evaluate``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import foveate
from foveate.hf import branch, record
from foveate.hf.model.internals import CACHE
from foveate.policies.policy import Policy
from foveate_demo import vision
from foveate_demo.processor import COLUMNS
from foveate_demo.questions import Album, Question
from foveate_lab.eval.oracle import oracle
from training.evaluate import TOKENS, Share, batches, held_out
from training.seeing import wording

WINDOW = 12
KINDS = ("document", "three images, different fields", "three images, same fields")
BUDGETS = ("33%", "20%", "10%")
METHODS = ("oracle", "snapkv", "mixkv", "lookm", "vnorm", "h2o", "streaming_llm", "random")


def policy(name: str, budget: str, evidence: tuple[tuple[int, ...], ...]) -> Policy:
    """Return a method's policy at a budget; the oracle keeps the ``evidence`` of each row."""
    if name == "oracle":
        return oracle(budget, *evidence)
    option = {"snapkv": "window", "mixkv": "window", "random": "recent", "vnorm": "recent"}.get(
        name
    )
    return foveate.policy(f"{name}:budget={budget}" + (f",{option}={WINDOW}" if option else ""))


def evidence_positions(album: Album, question: Question, visual: Tensor) -> tuple[int, ...]:
    """Return the positions in the prompt of the rows with the answer."""
    where = torch.nonzero(visual).flatten().tolist()
    starts, start = [], 0
    for page in album.images:
        starts.append(start)
        start += len(page.texts) * COLUMNS
    return tuple(
        where[starts[image] + row * COLUMNS + slot]
        for image, row in question.evidence
        for slot in range(COLUMNS)
    )


@torch.no_grad()
def answers(
    model: Any, processor: Any, inputs: dict[str, Tensor], cache: Any, first: Tensor
) -> list[str]:
    """Generate answers greedily from a cache of the prompts and the logits of the first tokens."""
    tokens, mask = [first.argmax(-1, keepdim=True)], inputs["attention_mask"]
    end = model.generation_config.eos_token_id
    for _ in range(TOKENS - 1):
        if bool((torch.cat(tokens, 1) == end).any(1).all()):
            break
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
        logits = model(input_ids=tokens[-1], attention_mask=mask, **{CACHE: cache}).logits
        tokens.append(logits[:, -1].argmax(-1, keepdim=True))
    rows = [row[: row.index(end)] if end in row else row for row in torch.cat(tokens, 1).tolist()]
    return [processor.decode(row, skip_special_tokens=True).strip() for row in rows]


def main() -> None:
    """Answer every question with every method, and print the share of right answers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=50, help="questions of each kind")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    model, processor = vision.load()
    cases = [case for kind in KINDS for case in held_out(kind, a.count)]
    cells = [("full", "100%"), *((m, b) for b in BUDGETS for m in a.methods)]
    right = dict.fromkeys(cells, 0)
    done = 0
    for part in batches(cases):
        texts = [wording(album, question.question) for album, question in part]
        images = [page.image for album, _ in part for page in album.images]
        inputs: dict[str, Any] = dict(processor(images, texts))
        recording = record(model, **inputs)
        visual = inputs["input_ids"] == model.config.image_token_id
        real = inputs["attention_mask"].bool()
        evidence = tuple(
            evidence_positions(*pair, v[r]) for pair, v, r in zip(part, visual, real, strict=True)
        )
        for name, budget in cells:
            chosen = foveate.policy("full") if name == "full" else policy(name, budget, evidence)
            with foveate.compress(model, chosen) as session:
                cache = branch(session, recording)
                replies = answers(model, processor, inputs, cache, recording.logits)
            right[name, budget] += sum(
                text == question.answer for text, (_, question) in zip(replies, part, strict=True)
            )
        done += len(part)
        print(f"{done} of {len(cases)}", right, flush=True)
    for (name, budget), n in right.items():
        print(f"{budget:5} {name:14} {Share(n, len(cases))}")
    if a.out:
        rows = [
            {
                "method": name,
                "budget": budget,
                "right": n,
                "count": len(cases),
                "interval": Share(n, len(cases)).interval,
            }
            for (name, budget), n in right.items()
        ]
        a.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
