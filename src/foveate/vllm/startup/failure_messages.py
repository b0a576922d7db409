"""Reasons of failed requests, in the body of the HTTP answer.

vLLM's server answers every request that ends with an error with "Internal server error". The
scheduler sends the reason in ``stop_reason``. The server's check gets nothing but the finish
reason, so the reason travels to it as an attribute of that string.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from foveate.vllm.vllm_api import GenerationError, RequestState

SERVING = "vllm.entrypoints.generate.base.serving", "GenerateBaseServing"


class ExplainedError(str):
    """VLLM's finish reason "error" with the reason as a sentence."""

    sentence: str


def explain_failures() -> None:
    """Make vLLM's server report why a request failed. Idempotent.

    It affects only processes that have imported the server, as :func:`http.refuse_booleans` does.
    """
    module, name = SERVING
    serving = getattr(sys.modules.get(module), name, None)
    if serving is not None and not hasattr(serving._raise_if_error, "__wrapped__"):
        serving._raise_if_error = wrap_raise_if_error(serving._raise_if_error)
        RequestState._new_completion_output = wrap_completion_output(
            RequestState._new_completion_output
        )


def wrap_completion_output(new_output: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap vLLM's ``_new_completion_output``, so that the finish reason carries the sentence."""

    @wraps(new_output)
    def new_completion_output(self: Any, *args: Any, **options: Any) -> Any:
        output = new_output(self, *args, **options)
        if output.finish_reason == "error" and isinstance(output.stop_reason, str):
            output.finish_reason = ExplainedError(output.finish_reason)
            output.finish_reason.sentence = output.stop_reason
        return output

    return new_completion_output


def wrap_raise_if_error(raise_if_error: Callable[..., None]) -> Callable[..., None]:
    """Wrap vLLM's check of a finish reason, so that its exception ends with the sentence."""

    @wraps(raise_if_error)
    def explaining(self: Any, finish_reason: str | None, *args: Any, **options: Any) -> None:
        try:
            raise_if_error(self, finish_reason, *args, **options)
        except GenerationError as error:
            if isinstance(finish_reason, ExplainedError):
                raise GenerationError(f"{error}: {finish_reason.sentence}") from None
            raise

    return explaining
