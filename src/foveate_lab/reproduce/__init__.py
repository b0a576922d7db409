"""The tables and figures of the five papers, each as data, and what runs them."""

from foveate_lab.reproduce.registry import EXPERIMENTS, FACTS, find_experiments
from foveate_lab.reproduce.reproduction import Options, Reproduction, merge, plan, run

__all__ = [
    "EXPERIMENTS",
    "FACTS",
    "Options",
    "Reproduction",
    "find_experiments",
    "merge",
    "plan",
    "run",
]
