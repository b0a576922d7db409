"""``foveate fit``."""
