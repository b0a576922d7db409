"""Time and memory of policies, measured against the same model without one in the same run."""

from foveate.loading.hardware import processor
from foveate_lab.bench.measure import BenchRow, bench
from foveate_lab.bench.subject import Subject, of_dims, of_model

__all__ = ["BenchRow", "Subject", "bench", "of_dims", "of_model", "processor"]
