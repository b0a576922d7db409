"""Answers: what survives of the full cache's, by method, budget and protocol."""
