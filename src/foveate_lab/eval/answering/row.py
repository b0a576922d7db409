"""Rows: the record of one policy's answer to one sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from foveate.hf import Stats
from foveate.hf.measuring.answer import TeacherForced
from foveate_lab.eval.answering.perplexity import mean_nll
from foveate_lab.eval.answering.reading import Reading
from foveate_lab.eval.metrics import rouge_l_to

Row = dict[str, Any]


class AnswerRow(NamedTuple):
    """Answer of one policy to a sample.

    ``reference``: tokens of the reference text, empty if the task has none; ``of_reference``: the
    model's predictions for them. ``seconds``: decoding, if timed. ``figures``: data for a report's
    figures. ``batch``: number of answers decoded together.
    """

    tokens: list[int]
    teacher_forced: TeacherForced
    text: str
    reference: list[int]
    of_reference: TeacherForced | None
    stats: Stats
    prefill_s: float
    seconds: float | None
    figures: Row
    batch: int = 1


def row(reading: Reading, spec: str, answer: AnswerRow, full: AnswerRow) -> Row:
    """Build a row: the score of an answer, its cost, and its distance from the full cache's."""
    task, text, stats = reading.task, answer.text, answer.stats
    forced, reference = answer.of_reference, answer.reference
    return {
        "task": task.name,
        "sample": reading.sample.name,
        "spec": spec,
        "question": reading.sample.digest,
        "labels": dict(reading.sample.labels),
        "image_sizes": [list(image.size) for image in reading.sample.images],
        "prediction": text,
        "answers": list(reading.sample.answers),
        "score": task.metric(text, reading.sample),
        "score_after_first": _after_first(reading, answer.tokens),
        **_compared(answer, full),
        "rouge_full": 1.0 if text == full.text else rouge_l_to(text, full.text),
        "reference_nll": mean_nll(forced, reference) if forced else None,
        "reference_tokens": len(reference),
        "tokens": stats.seen,
        "visual_tokens": reading.prompt.visual_tokens,
        "asked_tokens": _budget_tokens(stats),
        "kept_tokens": stats.kept_tokens,
        "raised": bool(stats.raised.any()),
        **{f"{name}_layers": int(layers.sum()) for name, layers in stats.noted.items()},
        "kv_bytes": stats.bytes_after,
        "kv_bytes_full": stats.bytes_before,
        "prefill_s": round(answer.prefill_s, 4),
        "compress_s": round(stats.seconds, 4),
        "decode_s_per_token": _per_step(answer.seconds, len(answer.tokens) - 1),
        **({"batch": answer.batch} if answer.batch > 1 else {}),
        **({"conversation": reading.conversation} if reading.conversation else {}),
        **answer.figures,
    }


def _budget_tokens(stats: Stats) -> float | None:
    """Return the budget in tokens per KV head; None if it follows from scores."""
    return None if stats.asked is None else float(stats.asked.float().mean())


def _after_first(reading: Reading, tokens: Sequence[int]) -> float | None:
    """Return the score without the first token; None if that token decides.

    The first token comes from the full prefill. It is removed from the prediction, and from answers
    that begin with it.
    """
    if not reading.task.divisible:
        return None
    decode = reading.loaded.tokenizer.decode
    first = decode(tokens[:1], skip_special_tokens=True).strip()
    answers = tuple(a[len(first) :].strip() for a in reading.sample.answers if a.startswith(first))
    shortened = tuple(answer for answer in answers if answer)
    if not shortened:
        return None
    text = decode(tokens[1:], skip_special_tokens=True).strip()
    task, sample = reading.task, reading.sample
    return task.metric(text, replace(sample, answers=shortened))


def _compared(answer: AnswerRow, full: AnswerRow) -> Row:
    """Compare with the full cache's answer: tokens, distributions, features."""
    p, q = (x.logits.log_softmax(-1) for x in (full.teacher_forced, answer.teacher_forced))
    targets = q.new_tensor(full.tokens, dtype=torch.long)[:, None]
    differing = (full.teacher_forced.features - answer.teacher_forced.features).abs()
    return {
        **agreement(answer.tokens, full.tokens),
        # KL divergence of the policy's predictions from the full cache's, in nats per token
        "kl": float((p.exp() * (p - q)).sum(-1).mean()),
        # negative log-likelihood of the full cache's tokens under the policy
        "nll": float(-q.gather(1, targets).mean()),
        "feature_error": [float(x) for x in differing.mean((1, 2))] if differing.numel() else [],
    }


def agreement(tokens: Sequence[int], full: Sequence[int]) -> Row:
    """Return the share of tokens equal to the full cache's, and the index of the first other."""
    same = [a == b for a, b in zip(tokens, full, strict=False)]
    agreeing = same.index(False) if False in same else len(same)
    return {
        "agreement": sum(same) / max(len(tokens), len(full), 1),
        "first_divergence": None if list(tokens) == list(full) else agreeing,
    }


def _per_step(seconds: float | None, steps: int) -> float | None:
    return round(seconds / steps, 5) if seconds is not None and steps else None
