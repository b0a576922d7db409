"""Probe passes after a prompt: the prompt once more, and questions about it."""
