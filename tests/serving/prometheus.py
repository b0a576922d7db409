"""Reads the text that /metrics shows, and that prometheus_client makes of a registry."""

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families


def foveate_metrics(text):
    """Foveate's counters by name, without prefix and suffix, each added up over its labels."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("foveate:")
            if name != sample.name and name.endswith("_total"):
                name = name.removesuffix("_total")
                found[name] = found.get(name, 0.0) + sample.value
    return found


def of_this_process():
    """The text of this process's registry."""
    return generate_latest(REGISTRY).decode()


def of_all_processes(folder):
    """The text that /metrics shows with that PROMETHEUS_MULTIPROC_DIR."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    return generate_latest(registry).decode()
