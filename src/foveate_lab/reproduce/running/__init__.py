"""Running experiments in a folder: what is there, what is left, and what it costs."""
