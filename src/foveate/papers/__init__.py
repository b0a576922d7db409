"""The five papers, one file each."""

from foveate.papers.csp import csp
from foveate.papers.david import david
from foveate.papers.lookm import lookm
from foveate.papers.mixkv import mixkv
from foveate.papers.prefixkv import prefixkv

__all__ = ["csp", "david", "lookm", "mixkv", "prefixkv"]
