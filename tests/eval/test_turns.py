"""The benchmark of chats over turns: its conversations, answers, interruptions and figures."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from benchmarks.quality import turns as benchmark
from benchmarks.quality.turns import Asked, Turn, chat_rows, conversation, full_rows, once_rows
from benchmarks.quality.turns_page import CHAT, FULL, ONCE, measured, page
from foveate.loading.model import Loaded, load
from foveate_demo.questions import Question
from foveate_lab.eval.results import Results


def test_each_turn_asks_about_a_page_that_was_shown() -> None:
    for number in range(3):
        drawn, shown = conversation(number), list[int]()
        for turn, asked in enumerate(drawn):
            shown += [turn] * len(asked.images)
            assert asked.age == turn - shown[asked.question.evidence[0][0]]
        assert len(drawn) == 20
        assert len(shown) == 8
        assert len({asked.question.question for asked in drawn}) == 20
    again = [asked.question for asked in conversation(2)]
    assert again == [asked.question for asked in drawn]
    assert again != [asked.question for asked in conversation(1)]


WORDS = ["Room:", "214", "215", "unknown", "."]
QUESTION = Question("What is the room?", "Room:", "214", ((0, 0),))


def judge(full: Sequence[int], predicted: Sequence[int], free: Any) -> tuple[float, float]:
    """Judge an answer of numbered words; return if it is right, and if it is the full cache's."""
    decode = {"decode": lambda ids, **_: " ".join(WORDS[i] for i in ids)}
    loaded: Any = SimpleNamespace(tokenizer=SimpleNamespace(**decode))
    asked = Asked(0, [Turn((), QUESTION, 0)], [full], [""], 0)
    row = benchmark.judged(loaded, asked, 0, predicted, free)
    return row["right"], row["same"]


def test_an_answer_is_generated_freely_only_where_it_may_be_right() -> None:
    def never() -> NoReturn:
        raise AssertionError("the answer cannot be right")

    assert judge([0, 1], [0, 1], never) == (1.0, 1.0)
    assert judge([0, 2], [0, 2], never) == (0.0, 1.0)
    assert judge([0, 1], [0, 2], never) == (0.0, 0.0)
    assert judge([3, 4], [0, 1], lambda: [0, 1]) == (1.0, 0.0)
    assert judge([3, 4], [1, 4], lambda: [1, 2]) == (0.0, 0.0)


@pytest.fixture(scope="module")
def demo() -> Loaded:
    """The demo model."""
    return load("demo")


def asked_in(demo: Loaded, count: int) -> Asked:
    """Return the first turns of a conversation, with the full cache's answers."""
    drawn = conversation(0)[:count]
    full = list(full_rows(demo, 0, drawn))
    texts = [row["text"] for row in full]
    return Asked(0, drawn, [row["ids"] for row in full], texts, full[-1]["end_bytes"])


@pytest.mark.slow
def test_chats_and_one_compression_answer_as_they_should(demo: Loaded) -> None:
    asked = asked_in(demo, 2)
    complete = [*chat_rows(demo, asked, "kvzip", "100%")]
    complete += once_rows(demo, asked, 1, [("kvzip", "100%")])
    assert [row["same"] for row in complete] == [1.0, 1.0, 1.0]
    assert complete[1]["pairs"] == complete[2]["pairs"] == complete[2]["tokens"]
    first = asked._replace(turns=asked.turns[:1])  # a chat's first turn is compressed once, too
    (in_chat,), (once,) = (
        [*chat_rows(demo, first, "snapkv", "20%")],
        [*once_rows(demo, first, 0, [("snapkv", "20%")])],
    )
    names = ("sample", "spec", "age", "right", "same", "pairs")
    assert [in_chat[name] for name in names] == [once[name] for name in names]
    assert in_chat["pairs"] < complete[0]["pairs"] / 2


def test_budgets_in_bytes_are_shares_of_the_full_cache_at_the_end() -> None:
    asked = Asked(0, [], [], [], 50_000_000)
    assert int(asked.policy("kvzip", "20% in bytes").amount.value) == 10_000_000
    assert asked.policy("kvzip", "20%").amount.value == Fraction(1, 5)


def made_up(task: str, number: int, spec: str, count: int) -> list[dict[str, Any]]:
    """Return rows without a model."""
    more = {"age": 0, "right": 1.0, "same": 1.0, "ids": [0], "text": "", "end_bytes": 1}
    more["pairs"] = 1
    return [{"task": task, "sample": f"{number}/{n}", "spec": spec, **more} for n in range(count)]


def test_an_interrupted_run_repeats_one_chat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def chat(loaded: Any, asked: Asked, method: str, budget: str) -> list[Any]:
        calls.append(method)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return made_up(CHAT, asked.number, f"{method}:{budget}", 20)

    monkeypatch.setattr(benchmark, "chat_rows", chat)
    monkeypatch.setattr(benchmark, "full_rows", lambda _, n, turns: made_up(CHAT, n, FULL, 20))
    cells, unused = [("snapkv", "20%"), ("kvzip", "20%")], Any
    with Results(tmp_path, {}, resume=True) as results, pytest.raises(KeyboardInterrupt):
        benchmark.answer_missing(results, unused, 0, cells)  # type: ignore[arg-type]
    with Results(tmp_path, {}, resume=True) as results:
        benchmark.answer_missing(results, unused, 0, cells)  # type: ignore[arg-type]
        assert len(results.rows) == 60
    assert calls == ["snapkv", "kvzip", "kvzip"]


def test_figures_are_paired_and_by_age() -> None:
    rows = made_up(CHAT, 0, FULL, 4) + made_up(CHAT, 0, "kvzip:20%", 4)
    rows += made_up(ONCE, 0, "kvzip:20%", 3)
    for row, age in zip(rows, (0, 2, 5, 9, 0, 2, 5, 9), strict=False):
        row["age"] = age
    rows[3]["right"] = rows[4]["right"] = rows[5]["right"] = rows[5]["same"] = 0.0
    rows[3]["end_bytes"] = 7
    found = measured(rows)
    assert (found["questions"], found["full_bytes"]) == (4, 7)
    chat = found["chats"][1]
    assert (chat["right"]["mean"], chat["behind"]["mean"], chat["same"]) == (0.5, -0.25, 0.75)
    assert chat["right"]["low"] == pytest.approx(0.150, abs=1e-3)  # Wilson's, of 2 of 4
    assert list(chat["by_age"].values()) == [[0.0, 1], [0.0, 1], [1.0, 1], [1.0, 1]]
    once = found["once"][0]
    assert (once["chat"]["mean"], once["once"]["mean"]) == (pytest.approx(1 / 3), 1.0)
    assert once["difference"]["mean"] == pytest.approx(-2 / 3)
    assert "| `kvzip` | 20% | 3 | 33% (" in page(found)
