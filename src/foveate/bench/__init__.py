"""What policies cost in time and memory, against the same model without one, in one run."""

from foveate.bench.measure import BenchRow, bench
from foveate.bench.subject import Subject, of_dims, of_model
from foveate.eval.hardware import processor

__all__ = ["BenchRow", "Subject", "bench", "of_dims", "of_model", "processor"]
