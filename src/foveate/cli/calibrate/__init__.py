"""``foveate calibrate``."""
