"""Small generated data in the files and folders of the real benchmarks.

They show that an experiment runs, and nothing of what a paper claims.
"""

from foveate_lab.reproduce.stand_in.folders import write
from foveate_lab.reproduce.stand_in.judge import judge

__all__ = ["judge", "write"]
