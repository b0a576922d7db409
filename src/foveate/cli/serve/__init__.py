"""``foveate serve``."""
