"""Profiles as tests need them: some numbers of a method, in a file."""

from foveate.core.profile import Profile


def saved(folder, method, numbers, model="tiny", budget=""):
    """The file ``method.json`` of that folder: a number for each layer, or for each KV head."""
    return Profile(
        method=method,
        model=model,
        layers=len(numbers),
        samples=1,
        budget=budget,
        by_layer=numbers,
    ).save(folder / f"{method}.json")
