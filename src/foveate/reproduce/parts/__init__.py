"""What can be run: one file for each kind of part."""

from foveate.reproduce.parts.cost import Batch, Latency, Throughput
from foveate.reproduce.parts.grid import Arm, Column, Grid, columns
from foveate.reproduce.parts.probe import Measure, Probe, Seen
from foveate.reproduce.parts.view import View

__all__ = [
    "Arm",
    "Batch",
    "Column",
    "Grid",
    "Latency",
    "Measure",
    "Probe",
    "Seen",
    "Throughput",
    "View",
    "columns",
]
