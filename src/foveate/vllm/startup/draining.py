"""Status 503 for requests that reach a server while it shuts down.

After SIGTERM the engines of vLLM 0.32 and 0.33 abort every new request. Its HTTP answer has status
200, no text and the finish reason "abort", so a load balancer would take it for an answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from http import HTTPStatus
from typing import Any

from foveate.vllm.startup.options import HERE
from foveate.vllm.vllm_api import AsyncLLM, GracefulHTTPError

MESSAGE = "This server is shutting down. Send the request to another one, or again later."


def refuse_while_draining() -> None:
    """Make vLLM's front end refuse new requests once its shutdown has begun. Idempotent.

    It learns of the shutdown before the engine does, so no request falls between the two.
    """
    if not hasattr(AsyncLLM.shutdown, "__wrapped__"):
        AsyncLLM.shutdown = wrap_shutdown(AsyncLLM.shutdown)
        AsyncLLM.check_admission = wrap_check_admission(AsyncLLM.check_admission)


def wrap_shutdown(shutdown: Callable[..., None]) -> Callable[..., None]:
    """Wrap vLLM's ``shutdown``, which returns only when open requests have ended."""

    @wraps(shutdown)
    def marking(self: Any, *args: Any, **options: Any) -> None:
        self.foveate_is_draining = True
        shutdown(self, *args, **options)

    return marking


def wrap_check_admission(check_admission: Callable[..., None]) -> Callable[..., None]:
    """Wrap vLLM's ``check_admission``, which the server calls before it starts a response.

    Servers without Foveate's worker stay as they are.
    """

    @wraps(check_admission)
    def checking(self: Any, *args: Any, **options: Any) -> None:
        ours = HERE in str(self.vllm_config.parallel_config.worker_cls)
        if ours and getattr(self, "foveate_is_draining", False):
            raise GracefulHTTPError(MESSAGE, HTTPStatus.SERVICE_UNAVAILABLE)
        check_admission(self, *args, **options)

    return checking
