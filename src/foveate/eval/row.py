"""What is written down of one policy's answer to one sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from foveate.backends.hf import Stats
from foveate.eval.answer import Told
from foveate.eval.metrics import rouge_l_to
from foveate.eval.model import Loaded
from foveate.eval.perplexity import mean_nll
from foveate.eval.reading import Reading

Row = dict[str, Any]


class Answer(NamedTuple):
    """What one policy makes of a sample."""

    tokens: list[int]
    told: Told
    said: str
    reference: list[int]
    row: Row


def row(
    loaded: Loaded, reading: Reading, spec: str, tokens: list[int], thought: Told,
    of_reference: Told | None, reference: list[int], full: Answer | None, stats: Stats,
    seconds: float | None, shown: Row,
) -> Answer:  # fmt: skip
    """The answer with its row: the score, what it cost, and how far it is from ``full``, which is
    None for the full cache itself.
    """
    task = reading.task
    said = loaded.tokenizer.decode(tokens, skip_special_tokens=True).strip()
    to = full.said if full else said
    found = {
        "task": task.name,
        "sample": reading.sample.name,
        "spec": spec,
        "prediction": said,
        "answers": list(reading.sample.answers),
        "score": task.metric(said, reading.sample),
        "score_after_first": _after_first(loaded, reading, tokens),
        **_compared(tokens, thought, full),
        "rouge_full": 1.0 if said == to else rouge_l_to(said, to),
        "reference_nll": mean_nll(of_reference, reference) if of_reference else None,
        "reference_tokens": len(reference),
        "tokens": reading.recording.tokens,
        "visual_tokens": reading.prompt.visual_tokens,
        "kept_tokens": stats.kept_tokens,
        "kv_bytes": stats.bytes_after,
        "kv_bytes_full": stats.bytes_before,
        "prefill_s": round(reading.seconds, 4),
        "compress_s": round(stats.seconds, 4),
        "decode_s_per_token": _each(seconds, len(tokens) - 1),
        **shown,
    }
    return Answer(tokens, thought, said, reference, found)


def _after_first(loaded: Loaded, reading: Reading, tokens: Sequence[int]) -> float | None:
    """The score without the first token, which comes from the full prefill; None where it decided.

    It is taken off the prediction, and off the answers that begin with it.
    """
    if not reading.task.divisible:
        return None
    decode = loaded.tokenizer.decode
    first = decode(tokens[:1], skip_special_tokens=True).strip()
    answers = tuple(a[len(first) :].strip() for a in reading.sample.answers if a.startswith(first))
    left = tuple(answer for answer in answers if answer)
    if not left:
        return None
    said = decode(tokens[1:], skip_special_tokens=True).strip()
    task, sample = reading.task, reading.sample
    return task.metric(said, replace(sample, answers=left))


def _compared(tokens: Sequence[int], thought: Told, full: Answer | None) -> Row:
    """How far from the full cache: in tokens, in distributions, in features."""
    reference = full or Answer(list(tokens), thought, "", [], {})
    same = [a == b for a, b in zip(tokens, reference.tokens, strict=False)]
    agreeing = same.index(False) if False in same else len(same)
    whole = list(tokens) == reference.tokens
    p, q = (x.logits.log_softmax(-1) for x in (reference.told, thought))
    wanted = torch.tensor(reference.tokens, device=q.device)[:, None]
    differing = (reference.told.features - thought.features).abs()
    return {
        "agreement": sum(same) / max(len(tokens), len(reference.tokens)),
        "first_divergence": None if whole else agreeing,
        "kl": float((p.exp() * (p - q)).sum(-1).mean()),
        "nll": float(-q.gather(1, wanted).mean()),
        "feature_error": [float(x) for x in differing.mean((1, 2))] if differing.numel() else [],
    }


def _each(seconds: float | None, steps: int) -> float | None:
    return round(seconds / steps, 5) if seconds is not None and steps else None
