"""A long real text that every Python has: the topics of its manual."""

from __future__ import annotations

from functools import cache


@cache
def manual() -> tuple[str, ...]:
    """The words of all topics, in the order of their names."""
    from pydoc_data.topics import topics

    return tuple(word for name in sorted(topics) for word in topics[name].split())
