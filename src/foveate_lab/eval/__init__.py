"""Evaluation: which method, at which budget, on what."""

from foveate.prompts.sample import TASKS, Sample, Span, Task, task

__all__ = ["TASKS", "Sample", "Span", "Task", "task"]
