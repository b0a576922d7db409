"""What clients may write in ``vllm_xargs`` over HTTP.

vLLM's requests take numbers and texts there, and pydantic takes true for the number 1: a context of
one token, or a budget of one. Nobody behind it sees the difference, so it is refused in front. So
is null, of which pydantic says in four errors that it is no type of a number or a text.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from foveate.vllm.plans.plans import PREFIX

FIELD = "vllm_xargs"
REQUESTS = {
    "vllm.entrypoints.openai.chat_completion.protocol": "ChatCompletionRequest",
    "vllm.entrypoints.openai.completion.protocol": "CompletionRequest",
    "vllm.entrypoints.openai.responses.protocol": "ResponsesRequest",
    "vllm.entrypoints.anthropic.protocol": "AnthropicMessagesRequest",
}


def refuse_truths() -> None:
    """Lets vLLM's types of requests refuse true and false as a value of ours; any number of times.

    Only in processes that have these types, which are those that take requests in: vLLM loads its
    plug-ins after them, and before the routes are made of them.
    """
    for module, name in REQUESTS.items():
        request = getattr(sys.modules.get(module), name, None)
        if request is not None and FIELD in request.model_fields:
            _refuse(request)


def _refuse(request: Any) -> None:
    from pydantic import BeforeValidator  # of vLLM's environment

    field = request.model_fields[FIELD]
    if any(getattr(one, "func", None) is no_truths for one in field.metadata):
        return
    field.metadata = [BeforeValidator(no_truths), *field.metadata]
    request.model_rebuild(force=True)


def no_truths(given: Any) -> Any:
    """Return the same; raise ValueError, which is pydantic's, where one of ours is true, false or
    null.
    """
    for name, value in given.items() if isinstance(given, dict) else ():
        if (value is None or isinstance(value, bool)) and str(name).startswith(PREFIX):
            raise ValueError(f"{name}={json.dumps(value)}: give a number, or a text.")
    return given
