"""A benchmark in a folder: what it is, how it is read, and the task that its samples make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from foveate.data import Folder
from foveate.errors import InvalidInput, MissingPackage
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.options import options
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.judge import Judge, Judged, unscored
from foveate_lab.eval.task_registry import Fit, Metric, Task, distinct

Reader = Callable[..., Iterator[Sample]]
"""Takes a folder, and its options by name."""
Parts = Callable[..., Sources | Mapping[str, Sources]]
"""The data sets that a benchmark reads under its options; several have names."""
Conversations = Mapping[str, str] | Callable[..., Mapping[str, str]]
"""Names of conversations by family of models, or a function of the benchmark's options."""
NONE: Mapping[str, Any] = MappingProxyType({})


def _unread(folder: Folder) -> Iterator[Sample]:
    """No sample."""
    return iter(())


@dataclass(frozen=True)
class Benchmark:
    """How a benchmark's folder is read and scored: a decorator of the function that reads it.

    Args:
        name: of the task.
        sources: its data set in all forms, or a function of its options that gives one or several.
        metric: scores without a judge.
        longest: tokens of an answer.
        summary: what it is; by default the first line of the function's docstring.
        data: the data set that it shares with others.
        contents: what has to be in the folder, if that is not to be taken from ``sources``.
        judged: scores with a judge.
        reference, divisible, fit: see :class:`Task`.
        conversations: those in which its authors asked models, or a function of its options.
        read: the function.
    """

    name: str
    sources: Sources | Parts
    _: KW_ONLY
    metric: Metric = unscored
    longest: int = 32
    summary: str = ""
    data: str = ""
    contents: str = ""
    judged: Judged | None = None
    reference: bool = False
    divisible: bool = True
    fit: Fit | None = None
    conversations: Conversations = field(default_factory=dict)
    read: Reader = _unread

    def __call__(self, read: Reader) -> Reader:
        """Register the benchmark that ``read`` reads."""
        BENCHMARKS[self.name] = replace(
            self,
            summary=self.summary or (read.__doc__ or "").strip().split("\n")[0],
            data=self.data or self.name,
            contents=self.contents or "; and ".join(one.contents for one in self.parts().values()),
            read=read,
        )
        return read

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
                f"{self.contents}."
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
            conversations=self._conversations(**taken.own),
        )

    def conversations_given(self, given: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the conversations of its task, by family, by the options ``given``."""
        return self._conversations(**options(self.name, self.read, given).own)

    def _conversations(self, **own: Any) -> Mapping[str, str]:
        return self.conversations(**own) if callable(self.conversations) else self.conversations

    def parts(self, **own: Any) -> Mapping[str, Sources]:
        """The data sets that it reads by its own options, by name; one alone has none."""
        sources = self.sources if isinstance(self.sources, Sources) else self.sources(**own)
        return {"": sources} if isinstance(sources, Sources) else sources

    def parts_given(self, given: Mapping[str, Any]) -> Mapping[str, Sources]:
        """The same by the options ``given``, which are checked."""
        return self.parts(**options(self.name, self.read, given).own)

    def _another(self, folder: Folder) -> str:
        """A sentence on the other data set that a folder holds, if it is known by its files, and
        nothing of this one is there.
        """
        if any(telling_file(one, folder) for one in self.parts().values()):
            return ""
        for one in BENCHMARKS.values():
            for sources in one.parts().values() if one.data != self.data else ():
                if name := telling_file(sources, folder):
                    return (
                        f"{self.name}: {str(folder.path)!r} holds {name} of {one.name}, which is "
                        f"another data set. {self.name} is {self.contents}."
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


def telling_file(sources: Sources, folder: Folder) -> str:
    """The file that a folder is known by, if it holds one of the forms, whole or in part."""
    try:
        return chosen.paths[0].name if (chosen := sources.known_by(folder)) else ""
    except (InvalidInput, MissingPackage):
        return "a part"


BENCHMARKS: dict[str, Benchmark] = {}


def prompt_with(mark: str, folder: Folder, name: str, *places: str) -> str:
    """The prompt of a set, with one ``mark``, out of a file of prompts at one of the places.

    Raises:
        InvalidInput: there is no such file, or no such prompt in it.
    """
    prompts = folder.record(*places)
    prompt = prompts.text(name) if prompts.has(name) else ""
    if prompt.count(mark) != 1:
        raise InvalidInput(f"{prompts.where}: there is no prompt with {mark} for {name!r}.")
    return prompt


def alternating(*several: Iterator[Sample]) -> Iterator[Sample]:
    """One of each in turn, until all are at their end."""
    waiting = list(several)
    while waiting:
        for one in tuple(waiting):
            if (sample := next(one, None)) is None:
                waiting.remove(one)
            else:
                yield sample
