"""Attaching to a model's calls, and restoring it."""
