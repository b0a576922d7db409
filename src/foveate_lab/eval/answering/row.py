"""What is written down of one policy's answer to one sample."""

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
    """What one policy makes of a sample. ``reference`` are the tokens of the text to compare with,
    none where a task has no such text, and ``of_reference`` is what is thought of them. ``seconds``
    are those of decoding, where it was timed. ``shown`` is what a report draws. ``batch`` answers
    were decoded together.
    """

    tokens: list[int]
    teacher_forced: TeacherForced
    said: str
    reference: list[int]
    of_reference: TeacherForced | None
    stats: Stats
    prefill_s: float
    seconds: float | None
    shown: Row
    batch: int = 1


def row(reading: Reading, spec: str, answer: AnswerRow, full: AnswerRow) -> Row:
    """The score of an answer, what it cost, and how far it is from the full cache's."""
    task, said, stats = reading.task, answer.said, answer.stats
    thought, reference = answer.of_reference, answer.reference
    return {
        "task": task.name,
        "sample": reading.sample.name,
        "spec": spec,
        "question": reading.sample.digest,
        "labels": dict(reading.sample.labels),
        "image_sizes": [list(image.size) for image in reading.sample.images],
        "prediction": said,
        "answers": list(reading.sample.answers),
        "score": task.metric(said, reading.sample),
        "score_after_first": _after_first(reading, answer.tokens),
        **_compared(answer, full),
        "rouge_full": 1.0 if said == full.said else rouge_l_to(said, full.said),
        "reference_nll": mean_nll(thought, reference) if thought else None,
        "reference_tokens": len(reference),
        "tokens": stats.seen,
        "visual_tokens": reading.prompt.visual_tokens,
        "asked_tokens": _asked(stats),
        "kept_tokens": stats.kept_tokens,
        "raised": bool(stats.raised.any()),
        **{f"{name}_layers": int(layers.sum()) for name, layers in stats.noted.items()},
        "kv_bytes": stats.bytes_after,
        "kv_bytes_full": stats.bytes_before,
        "prefill_s": round(answer.prefill_s, 4),
        "compress_s": round(stats.seconds, 4),
        "decode_s_per_token": _each(answer.seconds, len(answer.tokens) - 1),
        **({"batch": answer.batch} if answer.batch > 1 else {}),
        **({"conversation": reading.conversation} if reading.conversation else {}),
        **answer.shown,
    }


def _asked(stats: Stats) -> float | None:
    """Tokens per KV head that the budget comes to; None where it follows from scores."""
    return None if stats.asked is None else float(stats.asked.float().mean())


def _after_first(reading: Reading, tokens: Sequence[int]) -> float | None:
    """The score without the first token, which comes from the full prefill; None where it decided.

    It is taken off the prediction, and off the answers that begin with it.
    """
    if not reading.task.divisible:
        return None
    decode = reading.loaded.tokenizer.decode
    first = decode(tokens[:1], skip_special_tokens=True).strip()
    answers = tuple(a[len(first) :].strip() for a in reading.sample.answers if a.startswith(first))
    left = tuple(answer for answer in answers if answer)
    if not left:
        return None
    said = decode(tokens[1:], skip_special_tokens=True).strip()
    task, sample = reading.task, reading.sample
    return task.metric(said, replace(sample, answers=left))


def _compared(answer: AnswerRow, full: AnswerRow) -> Row:
    """How far from the full cache: in tokens, in distributions, in features."""
    same = [a == b for a, b in zip(answer.tokens, full.tokens, strict=False)]
    agreeing = same.index(False) if False in same else len(same)
    whole = answer.tokens == full.tokens
    p, q = (x.logits.log_softmax(-1) for x in (full.teacher_forced, answer.teacher_forced))
    wanted = q.new_tensor(full.tokens, dtype=torch.long)[:, None]
    differing = (full.teacher_forced.features - answer.teacher_forced.features).abs()
    return {
        "agreement": sum(same) / max(len(answer.tokens), len(full.tokens)),
        "first_divergence": None if whole else agreeing,
        "kl": float((p.exp() * (p - q)).sum(-1).mean()),
        "nll": float(-q.gather(1, wanted).mean()),
        "feature_error": [float(x) for x in differing.mean((1, 2))] if differing.numel() else [],
    }


def _each(seconds: float | None, steps: int) -> float | None:
    return round(seconds / steps, 5) if seconds is not None and steps else None
