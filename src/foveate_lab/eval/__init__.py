"""Evaluation of methods at budgets on tasks."""

from foveate.prompts.sample import Sample, Span
from foveate_lab.eval.task_registry import TASKS, Task, task

__all__ = ["TASKS", "Sample", "Span", "Task", "task"]
