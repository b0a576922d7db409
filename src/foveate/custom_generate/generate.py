"""What transformers runs in the place of ``generate``; it copies this one file, so nothing of the
folder is imported here.
"""

from __future__ import annotations

import sys
from typing import Any

import foveate
from foveate.hf.attach.model_queue import enter


def generate(model: Any, policy: Any = None, **arguments: Any) -> Any:
    """Run ``model.generate(**arguments)`` in a ``foveate.compress`` context, once the model is free
    of other threads' calls.

    Args:
        model: the model whose ``generate`` was called.
        policy: a policy or its spec; left out it is ``foveate.compress``'s.
        **arguments: what ``generate`` was called with besides.

    Raises:
        FoveateError: as :func:`foveate.compress` raises.
    """
    given = {} if policy is None else {"policy": policy}
    with (
        enter(model, sys._getframe()),
        foveate.compress(model, tokenizer=arguments.get("tokenizer"), **given),
    ):
        return model.generate(**arguments)
