"""What a cache thinks of a reference: its tokens, told one after the other.

PrefixKV (arXiv:2412.03409, eq. 3): perplexity is the exponential of the mean over all tokens of all
samples, on caches that were compressed after the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from foveate.hf.measuring.answer import TeacherForced
from foveate.loading.model import Loaded

LARGEST = 700.0  # nats: what the exponential of can still be held


def reference_tokens(loaded: Loaded, reference: str, answer: Sequence[int]) -> list[int]:
    """The reference's tokens, after a blank where the model's own answer begins with one."""
    begins = loaded.tokenizer.decode(list(answer[:1]), skip_special_tokens=True)
    blank = " " if begins.startswith(" ") else ""
    tokens: list[int] = loaded.tokenizer(blank + reference, add_special_tokens=False)["input_ids"]
    return tokens


def mean_nll(thought: TeacherForced, tokens: Sequence[int]) -> float:
    """Mean negative log-likelihood of the tokens that were told: of PrefixKV eq. 2, over all i."""
    wanted = thought.logits.new_tensor(tokens, dtype=torch.long)[:, None]
    return float(-thought.logits.log_softmax(-1).gather(1, wanted).mean())


def perplexity(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """PrefixKV eq. 3, of all references of these rows together; None where none of them has one, or
    where the likelihood of one is no finite number.
    """
    references = [
        (row.get("reference_nll"), row["reference_tokens"])
        for row in rows
        if row.get("reference_tokens")
    ]
    if not references or not all(nll is not None and math.isfinite(nll) for nll, _ in references):
        return None
    mean = sum(nll * count for nll, count in references) / sum(count for _, count in references)
    return math.exp(mean) if mean < LARGEST else math.inf
