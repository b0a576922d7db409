"""MixKV: Mixing Importance with Diversity (arXiv:2510.20707)."""

from foveate_lab.reproduce.papers.mixkv import ablations, appendix, claims, keys, tables
from foveate_lab.reproduce.papers.mixkv.shared import PAPER

EXPERIMENTS = (
    *keys.EXPERIMENTS,
    *tables.EXPERIMENTS,
    *ablations.EXPERIMENTS,
    *claims.EXPERIMENTS,
    *appendix.EXPERIMENTS,
)

__all__ = ["EXPERIMENTS", "PAPER"]
