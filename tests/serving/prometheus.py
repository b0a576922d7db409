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


def labelled(text, name):
    """The values of one of Foveate's counters by policy, and by reason where it has reasons; those
    that never rose are left out.
    """
    families = text_string_to_metric_families(text)
    samples = [one for family in families for one in family.samples if one.value]
    return {
        (one.labels["policy"], *filter(None, [one.labels.get("reason")])): one.value
        for one in samples
        if one.name == f"foveate:{name}_total"
    }


def of_this_process():
    """The text of this process's registry."""
    return generate_latest(REGISTRY).decode()


def of_all_processes(folder):
    """The text that /metrics shows with that PROMETHEUS_MULTIPROC_DIR."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    return generate_latest(registry).decode()
