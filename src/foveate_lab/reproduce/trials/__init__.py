"""Kinds of runs, in one file each."""

from foveate_lab.reproduce.trials.arms import Arm, Column, columns
from foveate_lab.reproduce.trials.cost import Batch, Latency, ThroughputTrial
from foveate_lab.reproduce.trials.gains import Gains, paired
from foveate_lab.reproduce.trials.grid import GridTrial
from foveate_lab.reproduce.trials.panels import Panels
from foveate_lab.reproduce.trials.probe import Measure, Probe, ProbedPrompt
from foveate_lab.reproduce.trials.view import ViewTrial

__all__ = [
    "Arm",
    "Batch",
    "Column",
    "Gains",
    "GridTrial",
    "Latency",
    "Measure",
    "Panels",
    "Probe",
    "ProbedPrompt",
    "ThroughputTrial",
    "ViewTrial",
    "columns",
    "paired",
]
