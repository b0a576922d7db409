"""All that has to be measured on a GPU, in parts that run by themselves, onto one page."""

from benchmarks.gpu.models import SuiteSetting
from benchmarks.gpu.run import run_suite, wrong
from benchmarks.written import RESULTS

__all__ = ["RESULTS", "SuiteSetting", "run_suite", "wrong"]
