"""Figures and page of chats over 20 turns: right answers with intervals, and by the page's age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any

from benchmarks.output import demo, table
from foveate_lab.eval.summary import Estimate, estimate, mean_difference

CHAT, ONCE, FULL = "chat", "once", "full"
"""Tasks of the rows, and the spec of the full cache."""
AGES = {"0": (0, 0), "1-3": (1, 3), "4-7": (4, 7), "8-19": (8, 19)}
"""Turns since a page was shown."""
Row = Mapping[str, Any]
Rows = Mapping[str, Row]  # by question


def measured(rows: Sequence[Row]) -> dict[str, Any]:
    """Return all figures: a list of the policies' chats, and of chats beside one compression."""
    chats, once = _by_spec(rows, CHAT), _by_spec(rows, ONCE)
    full = chats[FULL]
    return {
        "questions": len(full),
        "full_bytes": _end_bytes(full),
        "ages": {name: len(_of_age(full, name)) for name in AGES},
        "chats": [{"spec": spec, **_chat(own, full)} for spec, own in chats.items()],
        "once": [{"spec": spec, **_beside_once(chats[spec], own)} for spec, own in once.items()],
    }


def _by_spec(rows: Sequence[Row], task: str) -> dict[str, dict[str, Row]]:
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["task"] == task:
            found.setdefault(row["spec"], {})[row["sample"]] = row
    return found


def _end_bytes(full: Rows) -> float:
    """Return the full cache's bytes at the end of a conversation, on average."""
    most: dict[str, int] = {}
    for sample, row in full.items():
        number = sample.split("/")[0]
        most[number] = max(most.get(number, 0), row["end_bytes"])
    return mean(most.values())


def _of_age(rows: Rows, name: str) -> list[Row]:
    low, high = AGES[name]
    return [row for row in rows.values() if low <= row["age"] <= high]


def _chat(own: Rows, full: Rows) -> dict[str, Any]:
    by_age = {name: [row["right"] for row in _of_age(own, name)] for name in AGES}
    return {
        "right": asdict(estimate(row["right"] for row in own.values())),
        "behind": asdict(_difference(own, full)),
        "same": mean(row["same"] for row in own.values()),
        "by_age": {name: [sum(right), len(right)] for name, right in by_age.items()},
    }


def _beside_once(chat: Rows, once: Rows) -> dict[str, Any]:
    """Compare the questions that were answered both in the chat and after one compression."""
    common = {sample: chat[sample] for sample in once if sample in chat}
    return {
        "chat": asdict(estimate(row["right"] for row in common.values())),
        "once": asdict(estimate(once[sample]["right"] for sample in common)),
        "difference": asdict(_difference(common, once)),
        "pairs": mean(row["pairs"] / once[key]["pairs"] for key, row in common.items()),
    }


def _difference(own: Rows, other: Rows) -> Estimate:
    return mean_difference(row["right"] - other[sample]["right"] for sample, row in own.items())


def page(found: Mapping[str, Any]) -> str:
    """Return the page."""
    of_ages = ", ".join(f"{count} at {name}" for name, count in found["ages"].items())
    lines = [
        "# Chats of 20 turns about eight pages",
        "",
        f"The {demo()} in `foveate.Chat`: pages come in over the turns, and each turn asks about a "
        "page shown in it or earlier, in random order. Answers are right letter by letter. All "
        "policies continue with the full cache's answers, so that they answer the same "
        f"{found['questions']} questions after the same conversation. Budgets in bytes are these "
        f"shares of the full cache at the end ({found['full_bytes'] / 1e6:.1f} MB on average). "
        "`recommended` has its profile; `snapkv` has window=0.25. Intervals are 95 %: Wilson's, "
        "and for differences the paired bootstrap over questions.",
        "",
        "## Right answers, by the turns since the page was shown",
        "",
        f"Questions by age: {of_ages}.",
        "",
        *table(
            ["policy", "budget", "questions", "right", "minus full", "same as full", *AGES],
            map(_chat_cells, found["chats"]),
        ),
        "",
        "## Compressed at every turn, or once",
        "",
        "Once: the conversation up to the question is read in one prompt, and compressed once at "
        "the same share, as `Chat(reread=...)` does. Pairs are those kept of the question and "
        "all before it, the chat's over once's. Fewer questions than above: the latest of each "
        "conversation, after which a chat has compressed most often.",
        "",
        *table(
            ["policy", "budget", "questions", "chat", "once", "chat minus once", "pairs"],
            map(_once_cells, found["once"]),
        ),
    ]
    return "\n".join(lines)


def _chat_cells(cell: Mapping[str, Any]) -> list[str]:
    ages = [f"{right:.0f} of {count}" for right, count in cell["by_age"].values()]
    is_full = cell["spec"] == FULL
    behind = "" if is_full else _signed(cell["behind"])
    same = "" if is_full else f"{cell['same']:.0%}"
    right = cell["right"]
    return [*_named(cell["spec"]), str(right["count"]), _share(right), behind, same, *ages]


def _once_cells(cell: Mapping[str, Any]) -> list[str]:
    right = [_share(cell["chat"]), _share(cell["once"]), _signed(cell["difference"])]
    return [*_named(cell["spec"]), str(cell["chat"]["count"]), *right, f"{cell['pairs']:.3f}"]


def _named(spec: str) -> tuple[str, str]:
    method, _, budget = spec.partition(":")
    return f"`{method}`", budget


def _share(x: Mapping[str, float]) -> str:
    return f"{x['mean']:.0%} ({x['low']:.0%} to {x['high']:.0%})"


def _signed(x: Mapping[str, float]) -> str:
    return f"{x['mean']:+.0%} ({x['low']:+.0%} to {x['high']:+.0%})"
