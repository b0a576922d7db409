"""Small data in the files and folders of the real benchmarks, drawn and written here.

It shows that an experiment runs, and nothing of what a paper says.
"""

from foveate_lab.reproduce.stand_in.folders import write
from foveate_lab.reproduce.stand_in.judge import judge

__all__ = ["judge", "write"]
