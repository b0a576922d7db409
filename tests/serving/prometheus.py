"""Reads the text that /metrics shows, and that prometheus_client makes of a registry."""

from collections import Counter

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


def labelled(text, name):
    """The values of one of Foveate's counters by policy, and by reason where it has reasons, added
    up over models and engines; those that never rose are left out.
    """
    found = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == f"foveate:{name}_total":
                labels = (sample.labels.get(label) for label in ("policy", "reason"))
                found[tuple(filter(None, labels))] += sample.value
    return {labels: value for labels, value in found.items() if value}


def of_this_process():
    """The text of this process's registry."""
    return generate_latest(REGISTRY).decode()


def of_all_processes(folder):
    """The text that /metrics shows with that PROMETHEUS_MULTIPROC_DIR."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    return generate_latest(registry).decode()
