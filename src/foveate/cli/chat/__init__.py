"""``foveate chat``."""
