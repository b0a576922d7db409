"""GPU suite: everything that is measured on a GPU, in independent parts, on one page."""

from benchmarks.gpu.facts import findings
from benchmarks.gpu.models import SuiteSetting
from benchmarks.gpu.run import run_suite, wrong
from benchmarks.output import RESULTS

__all__ = ["RESULTS", "SuiteSetting", "findings", "run_suite", "wrong"]
