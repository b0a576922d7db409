"""All that has to be measured on a GPU, in parts that run by themselves, onto one page."""

from foveate_lab.bench.suite.run import default_folder, run_suite, wrong
from foveate_lab.bench.suite.setting import SuiteSetting

__all__ = ["SuiteSetting", "default_folder", "run_suite", "wrong"]
