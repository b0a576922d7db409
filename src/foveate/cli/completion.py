"""Names of methods: to complete a word that has been begun, and to refuse others early. Neither
imports PyTorch, which takes seconds.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import entry_points
from typing import Any

import foveate
from foveate.errors import UnknownMethod, suggest
from foveate.policies.parameters import shown
from foveate.policies.spec import split

_OF_OTHERS = "foveate.methods"
_PLAIN = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\(.*\))?\s*", re.DOTALL)


def method_names(incomplete: str) -> list[str]:
    """Return names of methods; after a plus sign those of what may be added."""
    before, plus, begun = incomplete.rpartition("+")
    return [f"{before}{plus}{name}" for name in foveate.METHOD_NAMES if name.startswith(begun)]


def known(given: Any) -> Any:
    """Return a spec, a list of them or None, once its methods are known ones.

    Raises:
        UnknownMethod: Foveate has no method of that name, and other packages have none at all.
        InvalidSpec: an unclosed parenthesis or quote.
    """
    for spec in [given] if isinstance(given, str) else given or ():
        for term in split(split(spec, ":")[0], "+"):
            match = _PLAIN.fullmatch(term)
            if match and match[1] not in ("policy", *foveate.METHOD_NAMES):
                if "foveate.policies.method" in sys.modules or entry_points(group=_OF_OTHERS):
                    break  # another package may have it
                names = foveate.METHOD_NAMES
                raise UnknownMethod(
                    f"no method named {shown(match[1])}. {suggest(match[1], names)}"
                )
    return given
