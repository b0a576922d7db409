"""The tables and figures of the five papers, each as data, and what runs them."""

from foveate_lab.reproduce.registry import EXPERIMENTS, FACTS, find_experiments

__all__ = ["EXPERIMENTS", "FACTS", "find_experiments"]
