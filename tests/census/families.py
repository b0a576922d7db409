"""What the census knows about each type beyond its defaults."""

from __future__ import annotations

from .families_a import ENTRIES as _A
from .families_f import ENTRIES as _F
from .families_i import ENTRIES as _I
from .families_m import ENTRIES as _M
from .families_q import ENTRIES as _Q
from .families_t import ENTRIES as _T
from .families_u import ENTRIES as _U
from .specimen import Entry
from .text import ENTRIES as _TEXT
from .text import TEXT

__all__ = ["ENTRIES", "TEXT"]

ENTRIES: dict[str, Entry] = {**_A, **_F, **_I, **_M, **_Q, **_T, **_U, **_TEXT}
"""All entries, by type; types that need none are absent."""
