"""What parameters do that mean the same in every method that has them. What else a method takes is
told in its own docstring.
"""

from __future__ import annotations

from foveate.policies.method import Method

_SHARED = {
    "as_released": "Count as the authors' code does, where that departs from the paper.",
    "budget": "What is kept: a share of the prompt, a number of tokens or of bytes.",
    "chunk": "Tokens of each part of the prompt that is worked on by itself.",
    "epsilon": "What is added to a score before the value's size multiplies it.",
    "every": "Tokens that are read or generated before it compresses again.",
    "floor": "The least that every head keeps, as a share of an even budget.",
    "group": "How the query heads that share a KV head become one score.",
    "kernel": "Neighboring tokens that scores are pooled over.",
    "merging": "How pairs that are not kept go into those that are.",
    "normalised": "Whether scores are scaled before they are compared.",
    "over": "Whether scores are brought to one scale by layer, or by head.",
    "pool": "How neighbors' scores are pooled: their mean, or the highest.",
    "profile": "A file of what was measured beforehand (foveate calibrate).",
    "protect_text": "Keep all text; visual tokens share what is left of the budget.",
    "recent": "The prompt's last tokens, always kept: a number, or a share of the budget.",
    "seed": "Of what is drawn at random; the same seed draws the same.",
    "sinks": "The prompt's first tokens, always kept.",
    "sketch": "Columns of the random matrix that keys are shortened with; null: none.",
    "window": "The last tokens, whose queries vote and which are always kept.",
}


def meaning(method: Method, parameter: str) -> str:
    """What a parameter does; nothing where neither the method's docstring nor this file says it."""
    return method.said.arguments.get(parameter) or _SHARED.get(parameter, "")
