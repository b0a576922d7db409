"""Text of Python's manual, which every installation has: a long real text."""

from __future__ import annotations

from functools import cache


@cache
def manual() -> tuple[str, ...]:
    """Return the words of all topics, sorted by the topics' names."""
    from pydoc_data.topics import topics

    return tuple(word for name in sorted(topics) for word in topics[name].split())
