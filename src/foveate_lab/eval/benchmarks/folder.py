"""A benchmark in a folder: what it is, how it is read, and the task that its samples make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foveate.data import Folder
from foveate.errors import InvalidInput, MissingPackage
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.forms import Forms, Parts
from foveate_lab.eval.benchmarks.options import options
from foveate_lab.eval.judge import Judge, Judged, unscored
from foveate_lab.eval.task_registry import Fit, Metric, Task, distinct

Reader = Callable[..., Iterator[Sample]]
"""Takes a folder, and its options by name."""
NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Benchmark:
    """How a benchmark's folder is read and scored. ``data`` names its data set, which several may
    share. ``parts`` gives the data sets that it reads under
    its options, by name, in all their forms; ``holds`` says what has to be in the folder.
    ``judged`` scores with a judge, ``metric`` without one; the rest is as with :class:`Task`.
    """

    name: str
    summary: str
    holds: str
    read: Reader
    data: str
    parts: Parts
    metric: Metric
    longest: int
    judged: Judged | None = None
    reference: bool = False
    divisible: bool = True
    fit: Fit | None = None

    def task(
        self,
        folder: Path,
        judge: Judge | None = None,
        *,
        outside: bool = False,
        given: Mapping[str, Any] = NONE,
    ) -> Task:
        """The task of the samples in a folder, in the order of the release, by the options
        ``given``. What its files name has to lie in it, unless ``outside``.

        Raises:
            InvalidInput: no such folder.
            InvalidParameter: no such option, or a value that it does not take.
        """
        taken = options(self.name, self.read, given)
        if not folder.is_dir():
            raise InvalidInput(
                f"{self.name}: the folder {str(folder)!r} does not exist. It has to hold "
                f"{self.holds}."
            )

        def samples(count: int, seed: int) -> Iterator[Sample]:
            given = Folder(folder, outside)
            read = first_of_all(self.read(given, **taken.own), lambda: self._another(given))
            return islice(distinct(read), count)

        return Task(
            f"{self.name}{taken.written}",
            self.summary,
            samples,
            partial(self.judged, judge) if judge and self.judged else self.metric,
            taken.general.get("longest", self.longest),
            self.reference,
            self.divisible,
            self.fit,
            taken.pixels,
            unjudged=self.judged is not None and not judge and "rules" not in taken.own.values(),
        )

    def forms(self, given: Mapping[str, Any] = NONE) -> Mapping[str, Forms[Any]]:
        """The data sets that it reads by the options ``given``, by name."""
        return self.parts(**options(self.name, self.read, given).own)

    def _another(self, folder: Folder) -> str:
        """A sentence on the other data set that a folder holds, if it is known by its files, and
        nothing of this one is there.
        """
        if any(telling_file(forms, folder) for forms in self.parts().values()):
            return ""
        for one in BENCHMARKS.values():
            for forms in one.parts().values() if one.data != self.data else ():
                if name := telling_file(forms, folder):
                    return (
                        f"{self.name}: {str(folder.path)!r} holds {name} of {one.name}, which is "
                        f"another data set. {self.name} is {self.holds}."
                    )
        return ""


def first_of_all(read: Iterator[Sample], why: Callable[[], str]) -> Iterator[Sample]:
    """The samples; where there is not even a first one, as another data set's folder was given,
    that is said.
    """
    try:
        first = next(read, None)
    except InvalidInput as error:
        if said := why():
            raise InvalidInput(said) from error
        raise
    if first is not None:
        yield first
        yield from read


def telling_file(forms: Forms[Any], folder: Folder) -> str:
    """The file that a folder is known by, if it holds one of the forms, whole or in part."""
    try:
        return chosen.paths[0].name if (chosen := forms.known_by(folder)) else ""
    except (InvalidInput, MissingPackage):
        return "a part"


BENCHMARKS: dict[str, Benchmark] = {}


def benchmark(
    name: str,
    *,
    forms: Forms[Any] | Parts,
    data: str = "",
    holds: str = "",
    metric: Metric = unscored,
    longest: int = 32,
    summary: str = "",
    judged: Judged | None = None,
    reference: bool = False,
    divisible: bool = True,
    fit: Fit | None = None,
) -> Callable[[Reader], Reader]:
    """Registers the function that reads a benchmark's folder; what it is, says ``summary`` or the
    function's docstring. ``data`` is the data set that it shares with others; ``forms`` are those
    of its data set, or a function of its options that gives those of several, by their names;
    ``holds`` says what has to be in the folder, if it is not to be taken from them.
    """
    parts = one_set(forms) if isinstance(forms, Forms) else forms
    holds = holds or "; and ".join(one.holds for one in parts().values())

    def register(read: Reader) -> Reader:
        what = summary or (read.__doc__ or "").strip().split("\n")[0]
        BENCHMARKS[name] = Benchmark(
            name,
            what,
            holds,
            read,
            data or name,
            parts,
            metric,
            longest,
            judged,
            reference,
            divisible,
            fit,
        )
        return read

    return register


def one_set(forms: Forms[Any]) -> Parts:
    """The forms of a data set that no option changes."""
    return lambda **own: {"": forms}


def alternating(*several: Iterator[Sample]) -> Iterator[Sample]:
    """One of each in turn, until all are at their end."""
    waiting = list(several)
    while waiting:
        for one in tuple(waiting):
            if (sample := next(one, None)) is None:
                waiting.remove(one)
            else:
                yield sample
