"""Results of several folders: those of one run in parts become one, the others stand beside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foveate_lab.eval.bundle import Bundle
from foveate_lab.eval.held import key_of
from foveate_lab.eval.summary import Rows

SAME = ("model", "protocol", "seed", "judge", "longest_prompt", "stand-in")
"""What has to be the same of two runs for their rows to be those of one."""
BEFORE = ("answers", "image_sizes", "tokens")
"""What tells questions apart in rows without a digest."""
ANSWER = ("prediction", "score")
"""What two answers to one question under one policy have in common."""


@dataclass
class ReportPart:
    """Rows that can stand in one table. ``why`` says what keeps them apart from the part before
    that they would otherwise belong to; nothing where they have little in common anyway.
    """

    bundles: list[Bundle]
    rows: list[Mapping[str, Any]]
    why: str = ""
    _keys: set[tuple[str, str, str]] = field(default_factory=set, repr=False)

    @property
    def configuration(self) -> Mapping[str, Any]:
        """How the first of its folders was made."""
        return self.bundles[0].stored.configuration

    def take(self, bundle: Bundle) -> None:
        """Adds the rows of a bundle that are not there."""
        if bundle not in self.bundles:
            self.bundles.append(bundle)
        for row in bundle.stored.rows:
            if (key := key_of(row)) not in self._keys:
                self._keys.add(key)
                self.rows.append(row)


def parts(bundles: Iterable[Bundle]) -> list[ReportPart]:
    """Puts the bundles together that asked the same questions of the same model in the same way.

    Where both have answers to a question under a policy, the full cache at least, these have to be
    the same; the questions of a task that both asked have to be, too. Otherwise no mean is over
    rows of both.
    """
    merged: list[ReportPart] = []
    for bundle in bundles:
        why = ""
        for part in merged:
            if not (fault := apart(part, bundle)):
                part.take(bundle)
                break
            why = why or ("" if fault in SAME else fault)
        else:
            part = ReportPart([bundle], [], why)
            part.take(bundle)
            merged.append(part)
    return merged


def apart(part: ReportPart, bundle: Bundle) -> str:
    """Why a bundle's rows are not to be averaged with a part's: the name of a setting, or a
    sentence; nothing if they may be.
    """
    mine, theirs = part.configuration, bundle.stored.configuration
    for name in SAME:
        if mine.get(name) != theirs.get(name):
            return name
    ours, version = (one.get("versions", {}).get("foveate") for one in (mine, theirs))
    if ours != version:
        return f"it is of foveate {version}, the other of {ours}"
    return _questions_differ(part.rows, bundle.stored.rows) or answers_differ(
        part.rows, bundle.stored.rows
    )


def _questions_differ(mine: Rows, theirs: Rows) -> str:
    """Which questions of a task that both asked are not the same."""
    ours, others = _questions(mine), _questions(theirs)
    for task in ours.keys() & others.keys():
        one, two = ours[task], others[task]
        only = sorted(one.keys() ^ two.keys())
        if only:
            return f"of task {task} it has {len(two)} questions, the other {len(one)}"
        for sample in one:
            if not same_question(one[sample], two[sample]):
                return f"question {sample} of task {task} is another one in the other"
    return ""


def _questions(rows: Rows) -> dict[str, dict[str, Mapping[str, Any] | None]]:
    """Of each task, a row of each sample; of a sample that was refused throughout, none."""
    questions: dict[str, dict[str, Mapping[str, Any] | None]] = {}
    for row in rows:
        samples = questions.setdefault(row["task"], {})
        if samples.setdefault(row["sample"], None) is None and "error" not in row:
            samples[row["sample"]] = row
    return questions


def same_question(one: Mapping[str, Any] | None, two: Mapping[str, Any] | None) -> bool:
    """Whether rows are of one question. Those of earlier versions have no digest of it."""
    if one is None or two is None:
        return True
    digests = "question" in one and "question" in two
    return all(one.get(x) == two.get(x) for x in (("question",) if digests else BEFORE))


def answers_differ(mine: Rows, theirs: Rows) -> str:
    """Which question that both answered under one policy has two answers, in a sentence; nothing
    if none has.
    """
    ours = {key_of(row): row for row in mine if "error" not in row}
    differ = [
        key_of(row)
        for row in theirs
        if "error" not in row
        and key_of(row) in ours
        and any(row.get(name) != ours[key_of(row)].get(name) for name in ANSWER)
    ]
    if not differ:
        return ""
    task, sample, spec = differ[0]
    return (
        f"{len(differ)} of its answers are not the other's, first that of {spec} to question "
        f"{sample} of task {task}"
    )


def names(all_parts: Sequence[ReportPart]) -> list[str]:
    """What the parts are called beside each other: their folders, a letter before each."""
    return [
        f"{chr(ord('A') + place % 26)}: {', '.join(one.folder.name for one in part.bundles)}"
        for place, part in enumerate(all_parts)
    ]
