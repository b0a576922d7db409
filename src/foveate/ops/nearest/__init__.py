"""Which kept slot each other slot is nearest to."""

from foveate.ops.nearest.reference import nearest_by_cosine, nearest_by_position

__all__ = ["nearest_by_cosine", "nearest_by_position"]
