# ruff: noqa: RUF001
"""LongBench's scores against its script, step by step."""

from __future__ import annotations

import random
import re
import string
import sys
from collections import Counter
from types import SimpleNamespace

import pytest
from rouge import Rouge

from foveate.errors import MissingPackage
from foveate_lab.eval.metrics import longbench
from tests.eval.metrics.conftest import Texts


def f1(prediction: list[str], truth: list[str]) -> float:
    same = sum((Counter(prediction) & Counter(truth)).values())
    if same == 0:
        return 0.0
    p, r = same / len(prediction), same / len(truth)
    return 2 * p * r / (p + r)


def normalize(s: str) -> str:
    s = "".join(ch for ch in s.lower() if ch not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", s).split())


def test_words_and_rouge(texts: Texts) -> None:
    package, some = Rouge(metrics=["rouge-l"]), 0
    for _ in range(300):
        said, right = texts(12), texts(6)
        expected = f1(normalize(said).split(), normalize(right).split())
        assert longbench.qa_f1(said, right) == pytest.approx(expected)
        some += 0 < expected < 1
        try:
            f = package.get_scores([said], [right], avg=True)["rouge-l"]["f"]
        except ValueError:
            f = 0.0
        assert longbench.rouge(said, right) == pytest.approx(f, abs=1e-12)
    assert some > 50


def share(prediction: str, truth: str) -> float:
    numbers, right = re.findall(r"\d+", prediction), 0
    for number in numbers:
        right += str(number) == str(truth)
    return 0.0 if len(numbers) == 0 else right / len(numbers)


def test_counts_and_paragraphs(texts: Texts) -> None:
    some = 0
    for _ in range(300):
        said = texts(8, words=["7", "12", "Paragraph", "of", "7.", "30", "段落7"])
        assert longbench.count(said, "7") == share(said, "7")
        assert longbench.retrieval(said, "Paragraph 12") == share(said, "12")
        assert longbench.retrieval(said, "段落7") == share(said, "7")
        some += 0 < share(said, "7") < 1
    assert some > 50


def classified(prediction: str, truth: str, classes: list[str]) -> float:
    found = []
    for name in classes:
        if name in prediction:
            found.append(name)
    for term in found:
        if term in truth and term != truth:
            found.remove(term)
    return 1.0 / len(found) if truth in found else 0.0


def test_classes_that_are_found(texts: Texts) -> None:
    r = random.Random(3)
    classes = ["City", "Other City", "Other", "Other location", "location", "Date", "Other entity"]
    seen = set()
    for _ in range(400):
        said, right = " ".join(r.choices(classes, k=r.randint(0, 3))), r.choice(classes)
        order = r.sample(classes, len(classes))
        expected = classified(said, right, order)
        assert longbench.classification(said, right, order) == expected, (said, right, order)
        seen.add(expected)
    assert len(seen) > 3


def matching(a: str, b: str) -> int:
    """Ratcliff and Obershelp: the longest common block, the first in a and then in b, and the same
    on both sides of it.
    """
    best = (0, 0, 0)
    for i in range(len(a)):
        for j in range(len(b)):
            k = 0
            while i + k < len(a) and j + k < len(b) and a[i + k] == b[j + k]:
                k += 1
            if k > best[0]:
                best = (k, i, j)
    k, i, j = best
    return k and k + matching(a[:i], b[:j]) + matching(a[i + k :], b[j + k :])


def test_code_is_compared_in_its_first_line() -> None:
    r = random.Random(4)
    for _ in range(150):
        line, right = ("".join(r.choices("ab(c", k=r.randint(0, 9))) for _ in range(2))
        said = r.choice(["", "\n\n", "# comment\n", "```python\n", "// x\n"]) + line
        if not said.strip("\n"):
            line = "more()"
        if line == right:
            expected = 1.0
        elif line and right:
            ratio = 2.0 * matching(line, right) / (len(line) + len(right))
            expected = round(100 * ratio) / 100
        else:
            expected = 0.0
        assert longbench.code(f"{said}\nmore()", right) == pytest.approx(expected), (said, right)


def test_chinese_is_cut_into_words(monkeypatch: pytest.MonkeyPatch, texts: Texts) -> None:
    def cut(text: str, cut_all: bool) -> list[str]:
        assert not cut_all
        return re.findall(r"..?|\n", text)  # two letters are a word

    monkeypatch.setitem(sys.modules, "jieba", SimpleNamespace(cut=cut))
    package, some = Rouge(metrics=["rouge-l"]), 0
    for _ in range(150):
        said, right = (
            texts(9, words=["中国", "北", "京。", "Ａ，", "x"]),
            texts(5, words=["中国", "北", "x"]),
        )

        def clean(text: str) -> list[str]:
            ignored = string.punctuation + longbench.CHINESE
            kept = [
                "".join("".join(c for c in w.lower() if c not in ignored).split())
                for w in cut(text, False)
            ]
            return [word for word in kept if word]

        expected = f1(clean(said), clean(right))
        assert longbench.qa_f1_zh(said, right) == pytest.approx(expected)
        p, g = " ".join(cut(said, False)), " ".join(cut(right, False))
        f = package.get_scores([p], [g])[0]["rouge-l"]["f"] if p and g else 0.0
        assert longbench.rouge_zh(said, right) == pytest.approx(f, abs=1e-12)
        some += expected > 0
    assert some > 50


def test_without_jieba_chinese_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jieba", None)
    with pytest.raises(MissingPackage, match=r"jieba.*foveate\[chinese\]"):
        longbench.rouge_zh("中", "国")
