"""Replacement of ``generate`` that transformers runs for ``custom_generate``.

transformers copies this file alone, so nothing is imported from its folder.
"""

from __future__ import annotations

import sys
from typing import Any

import foveate
from foveate.hf.attach.model_queue import enter


def generate(model: Any, policy: Any = None, **arguments: Any) -> Any:
    """Run ``model.generate(**arguments)`` in a ``foveate.compress`` context.

    It waits until other threads' calls have left the model.

    Args:
        model: the model whose ``generate`` was called.
        policy: a policy or its spec; by default that of ``foveate.compress``.
        **arguments: the other arguments of ``generate``.

    Raises:
        FoveateError: as :func:`foveate.compress` raises.
    """
    options = {} if policy is None else {"policy": policy}
    with (
        enter(model, sys._getframe()),
        foveate.compress(model, tokenizer=arguments.get("tokenizer"), **options),
    ):
        return model.generate(**arguments)
