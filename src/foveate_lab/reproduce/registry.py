"""Registry of all experiments, by id."""

from __future__ import annotations

from collections.abc import Sequence

from foveate.errors import InvalidInput, suggest
from foveate_lab.reproduce.check import benchmarks_of, data_address
from foveate_lab.reproduce.experiment import Experiment, FactsTable
from foveate_lab.reproduce.models import where_found
from foveate_lab.reproduce.papers import PaperFile
from foveate_lab.reproduce.published import PublishedProfile
from foveate_lab.reproduce.published_runs import runs_of
from foveate_lab.reproduce.setting import folder_of

_FILES = {name: PaperFile(name) for name in ("mixkv", "prefixkv", "csp", "david", "lookm")}
PAPERS = {name: file.paper for name, file in _FILES.items()}
EXPERIMENTS: dict[str, Experiment] = {
    experiment.id: experiment for file in _FILES.values() for experiment in file.experiments()
}
FACTS: dict[str, FactsTable] = {
    facts.id: facts for file in _FILES.values() for facts in file.facts()
}


def find_experiments(ids: Sequence[str]) -> list[Experiment]:
    """Return the experiments of these ids; "all", or all of a paper ("csp").

    Raises:
        InvalidInput: an unknown id; the message names similar ones.
    """
    experiments: dict[str, Experiment] = {}
    for name in ids:
        mine = [
            experiment
            for experiment in EXPERIMENTS.values()
            if name in ("all", experiment.id, experiment.id.partition(":")[0])
        ]
        if not mine:
            raise InvalidInput(f"no experiment {name!r}. {_near(name)}")
        experiments |= {experiment.id: experiment for experiment in mine}
    return list(experiments.values())


def _near(name: str) -> str:
    if name in FACTS:
        return f"It is a table of facts, and nothing to run: foveate reproduce {name} shows it."
    paper = name.partition(":")[0]
    known = [id for id in EXPERIMENTS if id.startswith(f"{paper}:")] or list(EXPERIMENTS)
    return suggest(name, known)


def folders(experiment: Experiment) -> list[str]:
    """Return the data folders that an experiment reads."""
    return list(dict.fromkeys(map(folder_of, benchmarks_of(experiment))))


def list_requirements(experiment: Experiment) -> list[str]:
    """Return a line for everything that a user has to bring, with its address."""
    return [
        *where_found(experiment.models),
        *map(data_address, folders(experiment)),
        *experiment.bring,
        *(
            profile.describe()
            for profile in experiment.calibrations.values()
            if isinstance(profile, PublishedProfile)
        ),
        *(
            f"--published: a copy of {run.source}, with the run {run.name}; optional"
            for run in runs_of(experiment)
        ),
    ]
