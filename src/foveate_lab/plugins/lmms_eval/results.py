"""Conversion of answers and figures to lmms-eval's types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmms_eval.api.instance import GenerationResult, TokenCounts
from lmms_eval.models.model_utils.gen_metrics import log_metrics

from foveate_lab.plugins.answerer import PluginAnswer, kv_ratio


def result(answer: PluginAnswer | None) -> GenerationResult:
    """Convert an answer to lmms-eval's type; None stands for a refused prompt."""
    if answer is None:
        return GenerationResult(text="", token_counts=TokenCounts(input_tokens=0, output_tokens=0))
    counts = TokenCounts(input_tokens=answer.prompt_tokens, output_tokens=answer.tokens)
    return GenerationResult(text=answer.text, token_counts=counts)


def log(answers_by_task: Mapping[str, Sequence[PluginAnswer | None]]) -> None:
    """Log the figures of each task's answers in lmms-eval's "throughput".

    Bytes count only documents that were answered.
    """
    answers = {
        task: [answer for answer in task_answers if answer is not None]
        for task, task_answers in answers_by_task.items()
    }
    every = [answer for task_answers in answers.values() for answer in task_answers]
    requests = sum(map(len, answers_by_task.values()))
    figures: dict[str, Any] = {"num_requests": requests, "refused": requests - len(every)}
    if every:
        figures |= {
            "kv_ratio": kv_ratio(every),
            "kv_bytes": sum(answer.kv_bytes for answer in every) / len(every),
            "kv_bytes_full": sum(answer.kv_bytes_full for answer in every) / len(every),
            **{f"kv_ratio_{task}": kv_ratio(a) for task, a in answers.items() if a},
        }
    seconds, tokens = sum(a.seconds for a in every), sum(a.tokens for a in every)
    log_metrics(
        total_elapsed_time=seconds,
        total_gen_tokens=tokens,
        avg_speed=tokens / seconds if seconds else 0.0,
        additional_metrics=figures,
    )
