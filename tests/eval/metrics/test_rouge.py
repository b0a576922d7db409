"""ROUGE-L against the package that the benchmarks use."""

from __future__ import annotations

import pytest
from rouge import Rouge

from foveate.prompts.sample import Sample
from foveate_lab.eval.metrics import rouge_l, rouge_l_to
from tests.eval.metrics.conftest import Texts


def test_it_is_the_packages(texts: Texts) -> None:
    package, scored = Rouge(metrics=["rouge-l"]), 0
    for _ in range(400):
        said, right = texts(20), texts(20)
        if any(not text.replace(".", "") for text in (said, right)):
            continue  # the package refuses
        expected = package.get_scores(said, right)[0]["rouge-l"]["f"]
        assert rouge_l_to(said, right) == pytest.approx(expected, abs=1e-12), (said, right)
        scored += 0 < expected < 0.99
    assert scored > 200


@pytest.mark.parametrize(("said", "right"), [("", "a"), ("a", ""), ("..", "a"), ("", "")])
def test_what_the_package_refuses_is_nought(said: str, right: str) -> None:
    with pytest.raises(ValueError, match=r"empty|at least 1"):
        Rouge(metrics=["rouge-l"]).get_scores(said, right)
    assert rouge_l_to(said, right) == 0.0


def test_a_long_text_without_a_full_stop_is_scored_where_the_package_gives_up() -> None:
    said, right = "right", "right" + " other" * 1100
    with pytest.raises(RecursionError):
        Rouge(metrics=["rouge-l"]).get_scores(said, right)
    assert rouge_l_to(said, right) == pytest.approx(2 / 3)  # 1 of 1 word, 1 of 2 different ones


def test_the_best_answer_counts_and_a_text_is_nearly_itself() -> None:
    said = "one two three"
    assert rouge_l(said, Sample("0", "?", ("four", "one two"))) == pytest.approx(0.8, abs=1e-6)
    assert rouge_l(said, Sample("0", "?", (said,))) == pytest.approx(1, abs=1e-6)
