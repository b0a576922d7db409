"""Generated pictures that the demo model can read: documents, tables, signs, charts, icons.

A ``random.Random`` determines everything: the same seed and fonts give the same picture.
"""

from foveate_demo.scenes.charts import chart
from foveate_demo.scenes.documents import Scene, form, owned, receipt, sign, some_facts, table
from foveate_demo.scenes.drawing import BUILT_IN, CELL, SLOTS, WIDTH
from foveate_demo.scenes.pictures import picture

__all__ = [
    "BUILT_IN",
    "CELL",
    "SLOTS",
    "WIDTH",
    "Scene",
    "chart",
    "form",
    "owned",
    "picture",
    "receipt",
    "sign",
    "some_facts",
    "table",
]
