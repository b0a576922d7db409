"""Answering of samples, and measurement of the answers."""
