"""Answers and their figures as lmms-eval takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lmms_eval.api.instance import GenerationResult, TokenCounts
from lmms_eval.models.model_utils.gen_metrics import log_metrics

from foveate_lab.plugins.answerer import PluginAnswer, kv_ratio


def result(answer: PluginAnswer | None) -> GenerationResult:
    """An answer as lmms-eval takes it; None stands for a prompt that was refused."""
    if answer is None:
        return GenerationResult(text="", token_counts=TokenCounts(input_tokens=0, output_tokens=0))
    counts = TokenCounts(input_tokens=answer.prompt_tokens, output_tokens=answer.tokens)
    return GenerationResult(text=answer.text, token_counts=counts)


def log(given: Mapping[str, Sequence[PluginAnswer | None]]) -> None:
    """Hands the figures of all answers of each task to lmms-eval's "throughput". Bytes are those of
    the documents that were answered.
    """
    answers = {task: [one for one in mine if one is not None] for task, mine in given.items()}
    every = [answer for mine in answers.values() for answer in mine]
    requests = sum(map(len, given.values()))
    figures: dict[str, Any] = {"num_requests": requests, "refused": requests - len(every)}
    if every:
        figures |= {
            "kv_ratio": kv_ratio(every),
            "kv_bytes": sum(one.kv_bytes for one in every) / len(every),
            "kv_bytes_full": sum(one.kv_bytes_full for one in every) / len(every),
            **{f"kv_ratio_{task}": kv_ratio(mine) for task, mine in answers.items() if mine},
        }
    seconds, tokens = sum(one.seconds for one in every), sum(one.tokens for one in every)
    log_metrics(
        total_elapsed_time=seconds,
        total_gen_tokens=tokens,
        avg_speed=tokens / seconds if seconds else 0.0,
        additional_metrics=figures,
    )
