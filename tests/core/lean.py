"""How the property tests run: few examples, the same at every run, whatever the machine's load."""

from hypothesis import HealthCheck, settings

lean = settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
