"""PrefixKV: Adaptive Prefix KV Cache (arXiv:2412.03409)."""

from foveate_lab.reproduce.experiment import FactsTable
from foveate_lab.reproduce.papers.prefixkv import analyses, others, tables
from foveate_lab.reproduce.papers.prefixkv.shared import PAPER

EXPERIMENTS = (*tables.EXPERIMENTS, *analyses.EXPERIMENTS, *others.EXPERIMENTS)
FACTS = (
    FactsTable(
        id="prefixkv:tables18-22",
        of=PAPER,
        where="Tables 18 to 22",
        shows="Sample chats of LLaVA-1.5-7B at 20%, to be read: no figure is measured.",
        columns=("table", "lines of the text", "what is asked of"),
        rows=(
            ("18", "439-446", "an image that the text does not hold"),
            ("19", "454-461", "an image that the text does not hold"),
            ("20", "463-470", "an image that the text does not hold"),
            ("21", "472-479", "an image that the text does not hold"),
            ("22", "481-488", "an image that the text does not hold"),
        ),
    ),
)

__all__ = ["EXPERIMENTS", "FACTS", "PAPER"]
