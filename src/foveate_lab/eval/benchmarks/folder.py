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
    """A benchmark in a folder, with its scores: a decorator of the function that reads the folder.

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
            contents=self.contents
            or "; and ".join(part.contents for part in self.parts().values()),
            read=read,
        )
        return read

    def task(
        self,
        folder: Path,
        judge: Judge | None = None,
        *,
        outside: bool = False,
        overrides: Mapping[str, Any] = NONE,
    ) -> Task:
        """Return the task of the samples in a folder, in the release's order.

        Args:
            folder: the data set's folder.
            judge: a language model that grades answers, where the benchmark needs one.
            outside: whether its files may name files outside the folder.
            overrides: options that differ from their defaults.

        Raises:
            InvalidInput: no such folder.
            InvalidParameter: no such option, or a value that it does not take.
        """
        taken = options(self.name, self.read, overrides)
        if not folder.is_dir():
            raise InvalidInput(
                f"{self.name}: the folder {str(folder)!r} does not exist. It has to hold "
                f"{self.contents}."
            )

        def samples(count: int, seed: int) -> Iterator[Sample]:
            root = Folder(folder, outside)
            read = first_of_all(self.read(root, **taken.own), lambda: self._another(root))
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

    def conversations_with(self, overrides: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the conversations of its task, by family; options are checked."""
        return self._conversations(**options(self.name, self.read, overrides).own)

    def _conversations(self, **own: Any) -> Mapping[str, str]:
        return self.conversations(**own) if callable(self.conversations) else self.conversations

    def parts(self, **own: Any) -> Mapping[str, Sources]:
        """Return the data sets that it reads under its own options, by name; one alone has none."""
        sources = self.sources if isinstance(self.sources, Sources) else self.sources(**own)
        return {"": sources} if isinstance(sources, Sources) else sources

    def parts_with(self, overrides: Mapping[str, Any]) -> Mapping[str, Sources]:
        """Return the data sets that it reads, by name; options are checked."""
        return self.parts(**options(self.name, self.read, overrides).own)

    def _another(self, folder: Folder) -> str:
        """Return a sentence on the other data set that a folder holds, if its files tell and none
        is of this one; else "".
        """
        if any(telling_file(sources, folder) for sources in self.parts().values()):
            return ""
        for other in BENCHMARKS.values():
            for sources in other.parts().values() if other.data != self.data else ():
                if name := telling_file(sources, folder):
                    return (
                        f"{self.name}: {str(folder.path)!r} holds {name} of {other.name}, which is "
                        f"another data set. {self.name} is {self.contents}."
                    )
        return ""


def first_of_all(read: Iterator[Sample], why: Callable[[], str]) -> Iterator[Sample]:
    """Yield the samples.

    Raises:
        InvalidInput: there is no first sample, with the reason that ``why`` returns, if any.
    """
    try:
        first = next(read, None)
    except InvalidInput as error:
        if reason := why():
            raise InvalidInput(reason) from error
        raise
    if first is not None:
        yield first
        yield from read


def telling_file(sources: Sources, folder: Folder) -> str:
    """Return the file that tells that a folder has one of these forms, whole or in part, or ""."""
    try:
        return chosen.paths[0].name if (chosen := sources.known_by(folder)) else ""
    except (InvalidInput, MissingPackage):
        return "a part"


BENCHMARKS: dict[str, Benchmark] = {}


def prompt_with(mark: str, folder: Folder, name: str, *paths: str) -> str:
    """Return the prompt of a set, with one ``mark``, from the file of prompts at one of the paths.

    Raises:
        InvalidInput: there is no such file, or no such prompt in it.
    """
    prompts = folder.record(*paths)
    prompt = prompts.text(name) if prompts.has(name) else ""
    if prompt.count(mark) != 1:
        raise InvalidInput(f"{prompts.where}: there is no prompt with {mark} for {name!r}.")
    return prompt


def alternating(*several: Iterator[Sample]) -> Iterator[Sample]:
    """Yield one sample of each in turn, until all are at their end."""
    waiting = list(several)
    while waiting:
        for samples in tuple(waiting):
            if (sample := next(samples, None)) is None:
                waiting.remove(samples)
            else:
                yield sample
