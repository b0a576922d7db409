"""Where the budget by levels of heads stood before."""

from __future__ import annotations

from foveate.stages.moved import moved

__getattr__ = moved(
    __name__,
    LEVELS="foveate.methods.recommended",
    HeadLevels="foveate.methods.recommended",
    LevelCounts="foveate.methods.recommended",
    levels="foveate.methods.recommended",
)
