"""Profiles and runs that a paper's authors publish: files that users bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from foveate.hf.measuring.author_files import import_profile
from foveate.loading.model import Loaded

FOLDER = "published"


@dataclass(frozen=True, kw_only=True)
class PublishedProfile:
    """A method's profile: the name of its file for each model, with {F} for the forgotten share of
    a prompt. ``source`` is where the files are published.
    """

    method: str
    files: Mapping[str, str]
    source: str
    at_a_budget: bool = False
    task: str = ""  # as in CalibrationRun; a published profile reads no benchmark

    def file(self, name: str, budget: str) -> str:
        """Return the name of the profile that is made of it."""
        at = "-" + budget.replace("%", "pct") if self.at_a_budget else ""
        return f"{name}{at}.json"

    def source_path(self, data: Path, model: str, budget: str) -> Path:
        """Return the path of the authors' file."""
        name = self.files[model]
        if self.at_a_budget:
            name = name.replace("{F}", str((100 - int(budget.removesuffix("%"))) / 100))
        return data / FOLDER / name

    def make(self, loaded: Loaded, paths: Mapping[Path, str], data: Path, model: str) -> None:
        """Convert the authors' files to the profiles of these paths, each at its budget.

        Raises:
            InvalidInput: a file that is no such table, or does not fit the model.
        """
        for path, budget in paths.items():
            spec = f"{self.method}:budget={budget}" if self.at_a_budget else self.method
            profile = import_profile(loaded.model, spec, self.source_path(data, model, budget))
            path.parent.mkdir(parents=True, exist_ok=True)
            profile.save(path)

    def describe(self) -> str:
        """Describe the files that a user has to bring."""
        names = ", ".join(dict.fromkeys(self.files.values()))
        names = names.replace("{F}", "0.1 to 0.9")
        return f"{FOLDER}/: {names} of {self.source}; without it its lines stay empty"


@dataclass(frozen=True, kw_only=True)
class PublishedRun:
    """A run in the authors' repository, and the line of our tables that has its settings.

    Attributes:
        name: folder below ``outputs/``, and row of ``eval_score.md``.
        model: the paper's model that it ran.
        arm: name of our line.
        budget: the run's budget.
        source: address of the repository.
    """

    name: str
    model: str
    arm: str
    budget: str
    source: str
