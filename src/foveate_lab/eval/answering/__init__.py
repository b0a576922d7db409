"""Answering the samples of a task, and measuring the answers."""
