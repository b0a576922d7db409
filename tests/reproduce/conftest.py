"""Experiments of which nothing was run yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foveate_lab.eval.results import Results
from foveate_lab.reproduce.experiment import Experiment
from foveate_lab.reproduce.setting import Setting

Unrun = Callable[[Experiment], list[Setting]]


@pytest.fixture
def unrun(tmp_path: Path) -> Iterator[Unrun]:
    """Gives the settings of an experiment's models, without any row."""
    with Results(tmp_path / "rows", {}, resume=True) as results:

        def settings(experiment: Experiment) -> list[Setting]:
            return [
                Setting(
                    model=model,
                    location=model,
                    data=tmp_path,
                    results=results,
                    limit=1,
                    seed=0,
                    small=False,
                    load=lambda: pytest.fail("no model is needed"),
                    profiles=tmp_path,
                    calibrations=experiment.calibrations,
                )
                for model in experiment.models
            ]

        yield settings
