"""Stages that two or more methods share: scores, budgets, selections, merges, and when to compress.

A method's file imports its stages from here. Stages of one method alone are in its own file;
`score/kvpress.py` is for a user's own presses.
"""

from foveate.stages import budget as budget
from foveate.stages import merge as merge
from foveate.stages import score as score
from foveate.stages import select as select
from foveate.stages import when as when
from foveate.stages.budget import *  # noqa: F403
from foveate.stages.merge import MergeNearest as MergeNearest
from foveate.stages.score import *  # noqa: F403
from foveate.stages.score.attention_rows import Reduction as Reduction
from foveate.stages.score.window import Pool as Pool
from foveate.stages.select import KeepsEnds as KeepsEnds
from foveate.stages.select import KeepsRecent as KeepsRecent
from foveate.stages.select import TopK as TopK
from foveate.stages.select import highest as highest
from foveate.stages.when import FixedSlot as FixedSlot
from foveate.stages.when import OverBudget as OverBudget
