"""How the property tests run: few examples (``make test-all`` has more), the same at every run,
whatever the machine's load.
"""

import os

from hypothesis import HealthCheck, settings

lean = settings(
    max_examples=int(os.environ.get("FOVEATE_EXAMPLES", "20")),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)

leaner = settings(lean, max_examples=lean.max_examples // 2)
"""For a property that each of the methods has."""
