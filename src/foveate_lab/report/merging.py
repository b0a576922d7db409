"""Merging of results: folders of one run become one part, others stay separate parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foveate_lab.eval.bundle import Bundle
from foveate_lab.eval.keyed_rows import key_of
from foveate_lab.eval.summary import Rows

SAME = ("model", "protocol", "seed", "judge", "longest_prompt", "stand-in")
"""Settings that must be equal for rows of two runs to be merged."""
BEFORE = ("answers", "image_sizes", "tokens")
"""Fields that identify a question in rows without a digest."""
ANSWER = ("prediction", "score")
"""Fields that two answers to one question under one policy must have in common."""


@dataclass
class ReportPart:
    """Rows that may stand in one table.

    ``why`` explains what separates them from the part before; empty if the two have little in
    common.
    """

    bundles: list[Bundle]
    rows: list[Mapping[str, Any]]
    why: str = ""
    _keys: set[tuple[str, str, str]] = field(default_factory=set, repr=False)

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Configuration of its first folder."""
        return self.bundles[0].stored.configuration

    def take(self, bundle: Bundle) -> None:
        """Add the rows of a bundle that are not yet in the part."""
        if bundle not in self.bundles:
            self.bundles.append(bundle)
        for row in bundle.stored.rows:
            if (key := key_of(row)) not in self._keys:
                self._keys.add(key)
                self.rows.append(row)


def parts(bundles: Iterable[Bundle]) -> list[ReportPart]:
    """Merge bundles that asked the same questions of the same model with the same settings.

    Two bundles must also agree in the questions of tasks that both have, and in every answer to the
    same question under the same policy. Otherwise they stay separate, and no mean mixes their rows.

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
    """Return the reason not to merge a bundle into a part; empty if they may be merged.

    The reason is the name of a setting, or a sentence.
    """
    mine, theirs = part.configuration, bundle.stored.configuration
    for name in SAME:
        if mine.get(name) != theirs.get(name):
            return name
    our_version, their_version = (run.get("versions", {}).get("foveate") for run in (mine, theirs))
    if our_version != their_version:
        return f"it is of foveate {their_version}, the other of {our_version}"
    return _questions_differ(part.rows, bundle.stored.rows) or answers_differ(
        part.rows, bundle.stored.rows
    )


def _questions_differ(mine: Rows, theirs: Rows) -> str:
    """Describe how questions of a task that both have differ; empty if they do not."""
    ours, others = _questions(mine), _questions(theirs)
    for task in ours.keys() & others.keys():
        our_rows, their_rows = ours[task], others[task]
        only = sorted(our_rows.keys() ^ their_rows.keys())
        if only:
            return f"of task {task} it has {len(their_rows)} questions, the other {len(our_rows)}"
        for sample in our_rows:
            if not same_question(our_rows[sample], their_rows[sample]):
                return f"question {sample} of task {task} is another one in the other"
    return ""


def _questions(rows: Rows) -> dict[str, dict[str, Mapping[str, Any] | None]]:
    """Return one row per sample of each task; None for samples that were always refused."""
    questions: dict[str, dict[str, Mapping[str, Any] | None]] = {}
    for row in rows:
        samples = questions.setdefault(row["task"], {})
        if samples.setdefault(row["sample"], None) is None and "error" not in row:
            samples[row["sample"]] = row
    return questions


def same_question(mine: Mapping[str, Any] | None, theirs: Mapping[str, Any] | None) -> bool:
    """Check if two rows are of one question. Rows of early versions have no digest of it."""
    if mine is None or theirs is None:
        return True
    digests = "question" in mine and "question" in theirs
    return all(
        mine.get(name) == theirs.get(name) for name in (("question",) if digests else BEFORE)
    )


def answers_differ(mine: Rows, theirs: Rows) -> str:
    """Describe answers that differ for the same question and policy; empty if none does."""
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
    """Return names of the parts: their folders after a letter."""
    return [
        f"{chr(ord('A') + index % 26)}: {', '.join(bundle.folder.name for bundle in part.bundles)}"
        for index, part in enumerate(all_parts)
    ]
