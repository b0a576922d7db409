"""What experiments run: one file for each kind."""

from foveate.reproduce.trials.arms import Arm, Column, columns
from foveate.reproduce.trials.cost import Batch, Latency, Throughput
from foveate.reproduce.trials.gains import Gains, paired
from foveate.reproduce.trials.grid import Grid
from foveate.reproduce.trials.panels import Panels
from foveate.reproduce.trials.probe import Measure, Probe, Seen
from foveate.reproduce.trials.view import View

__all__ = [
    "Arm",
    "Batch",
    "Column",
    "Gains",
    "Grid",
    "Latency",
    "Measure",
    "Panels",
    "Probe",
    "Seen",
    "Throughput",
    "View",
    "columns",
    "paired",
]
