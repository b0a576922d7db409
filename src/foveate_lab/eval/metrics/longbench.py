# ruff: noqa: RUF001 - Chinese punctuation is meant
"""LongBench's scores, each for one answer; the best answer counts.

Bai et al., arXiv:2308.14508. Quirks of its script that are kept: a class that is taken off the list
of those found makes the next one be passed over, and similar classes do not count after all.
Code is compared as fuzzywuzzy does without python-Levenshtein, which is not among LongBench's
requirements: by difflib's ratio, rounded to a percent.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher

from foveate.errors import MissingPackage
from foveate_lab.eval.metrics.rouge import rouge_l_to

CHINESE = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃》「」『』【】"
    "〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏."
)


def qa_f1(said: str, right: str) -> float:
    """F1 of words, without case, punctuation and articles."""
    return _f1(_words(said), _words(right))


def qa_f1_zh(said: str, right: str) -> float:
    """F1 of Chinese words, as jieba cuts them."""
    return _f1(_words_zh(said), _words_zh(right))


def rouge(said: str, right: str) -> float:
    """ROUGE-L of the package rouge."""
    return rouge_l_to(said, right)


def rouge_zh(said: str, right: str) -> float:
    """ROUGE-L of Chinese words."""
    return rouge_l_to(" ".join(_cut(said)), " ".join(_cut(right)))


def count(said: str, right: str) -> float:
    """The share of the numbers said that are right."""
    return _share(said, right)


def retrieval(said: str, right: str) -> float:
    """The share of the numbers said that are the paragraph's ("Paragraph 7" or "段落7")."""
    return _share(said, re.findall(r"(?:Paragraph |段落)(\d+)", right)[0])


def code(said: str, right: str) -> float:
    """How alike the first line of code is."""
    lines = said.lstrip("\n").split("\n")
    line = next((one for one in lines if not any(mark in one for mark in ("`", "#", "//"))), "")
    if line == right:
        return 1.0
    return round(100 * SequenceMatcher(None, line, right).ratio()) / 100 if line and right else 0.0


def classification(said: str, right: str, classes: Sequence[str]) -> float:
    """One over the number of classes named, if the right one is among them."""
    named = [one for one in classes if one in said]
    place = 0
    while place < len(named):
        one = named[place]
        if one in right and one != right:
            named.remove(one)  # the next one moves to its place and is not looked at
        place += 1
    return 1 / len(named) if right in named else 0.0


def _share(said: str, right: str) -> float:
    numbers = re.findall(r"\d+", said)
    return numbers.count(right) / len(numbers) if numbers else 0.0


def _f1(said: Sequence[str], right: Sequence[str]) -> float:
    same = sum((Counter(said) & Counter(right)).values())
    if not same:
        return 0.0
    precision, recall = same / len(said), same / len(right)
    return 2 * precision * recall / (precision + recall)


def _words(text: str) -> list[str]:
    kept = "".join(one for one in text.lower() if one not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def _words_zh(text: str) -> list[str]:
    ignored = set(string.punctuation + CHINESE)
    bare = ("".join(c for c in word.lower() if c not in ignored) for word in _cut(text))
    return [word for word in ("".join(one.split()) for one in bare) if word]


def _cut(text: str) -> list[str]:
    try:
        import jieba
    except ImportError as error:
        raise MissingPackage("a Chinese set of LongBench", "jieba", "chinese") from error
    return list(jieba.cut(text, cut_all=False))
