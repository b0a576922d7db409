"""Checks of ``vllm_xargs`` in HTTP requests, before pydantic parses them.

vLLM's requests take numbers and strings there, and pydantic parses true as the number 1: a context
or a budget of one token. Later code cannot see the difference, so it is refused here. So is null,
for which pydantic reports four confusing errors.
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


def refuse_booleans() -> None:
    """Make vLLM's request types refuse true, false and null as values of our arguments. Idempotent.

    It affects only processes that have imported these types, those that take requests in: vLLM
    loads its plug-ins after these imports, and before it builds the routes.
    """
    for module, name in REQUESTS.items():
        request = getattr(sys.modules.get(module), name, None)
        if request is not None and FIELD in request.model_fields:
            _add_validator(request)


def _add_validator(request: Any) -> None:
    from pydantic import BeforeValidator  # installed with vLLM

    field = request.model_fields[FIELD]
    if any(getattr(validator, "func", None) is without_booleans for validator in field.metadata):
        return
    field.metadata = [BeforeValidator(without_booleans), *field.metadata]
    request.model_rebuild(force=True)


def without_booleans(arguments: Any) -> Any:
    """Return the arguments unchanged; raise ValueError, which pydantic reports, if a value of ours
    is true, false or null.
    """
    for name, value in arguments.items() if isinstance(arguments, dict) else ():
        if (value is None or isinstance(value, bool)) and str(name).startswith(PREFIX):
            raise ValueError(f"{name}={json.dumps(value)}: give a number or a string.")
    return arguments
