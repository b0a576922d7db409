"""What experiments run: one file for each kind."""

from foveate.reproduce.trials.arms import Arm, Column, columns
from foveate.reproduce.trials.cost import Batch, Latency, ThroughputTrial
from foveate.reproduce.trials.gains import Gains, paired
from foveate.reproduce.trials.grid import GridTrial
from foveate.reproduce.trials.panels import Panels
from foveate.reproduce.trials.probe import Measure, Probe, ProbedPrompt
from foveate.reproduce.trials.view import ViewTrial

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
