"""``foveate run``."""
