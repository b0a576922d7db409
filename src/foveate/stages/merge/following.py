"""Where CaM's merge stood before."""

from __future__ import annotations

from foveate.stages.moved import moved

__getattr__ = moved(__name__, MergeFollowing="foveate.methods.cam")
