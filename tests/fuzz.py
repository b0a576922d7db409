"""How many hostile inputs a fuzz test makes: a few, the same at every run, so that its result is
that of the code alone. FOVEATE_FUZZ_EXAMPLES=2000 makes so many, others at every run.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

EXAMPLES = os.environ.get("FOVEATE_FUZZ_EXAMPLES", "")

fuzzed = settings(
    max_examples=int(EXAMPLES or 50),
    deadline=None,
    derandomize=not EXAMPLES,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
