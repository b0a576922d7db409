"""Where the budget by levels of heads stood before."""

from __future__ import annotations

from foveate.stages.moved import moved

__getattr__ = moved(
    __name__,
    LEVELS="foveate.methods.recommended.head_levels",
    HeadLevels="foveate.methods.recommended.head_levels",
    LevelCounts="foveate.methods.recommended.head_levels",
    levels="foveate.methods.recommended.head_levels",
)
