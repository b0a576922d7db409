# ruff: noqa: RUF001 - Chinese punctuation is meant
"""LongBench's scores of a prediction against one answer.

Bai et al., arXiv:2308.14508. Quirks of its script that are reproduced: removing a class from the
list during iteration skips the next one, and its fallback to the most similar class is never
reached. Code is compared as fuzzywuzzy does without python-Levenshtein, which is not among
LongBench's requirements: by difflib's ratio, rounded to a percent.
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


def qa_f1(prediction: str, right: str) -> float:
    """Return F1 of words, ignoring case, punctuation and articles."""
    return _f1(_words(prediction), _words(right))


def qa_f1_zh(prediction: str, right: str) -> float:
    """Return F1 of Chinese words, split by jieba."""
    return _f1(_words_zh(prediction), _words_zh(right))


def rouge(prediction: str, right: str) -> float:
    """Return ROUGE-L of the package rouge."""
    return rouge_l_to(prediction, right)


def rouge_zh(prediction: str, right: str) -> float:
    """Return ROUGE-L of Chinese words."""
    return rouge_l_to(" ".join(_cut(prediction)), " ".join(_cut(right)))


def count(prediction: str, right: str) -> float:
    """Return the share of predicted numbers that are right."""
    return _share(prediction, right)


def retrieval(prediction: str, right: str) -> float:
    """Return the share of predicted numbers that are the paragraph's ("Paragraph 7" or "段落7")."""
    return _share(prediction, re.findall(r"(?:Paragraph |段落)(\d+)", right)[0])


def code(prediction: str, right: str) -> float:
    """Return the similarity of the first line of code."""
    lines = prediction.lstrip("\n").split("\n")
    line = next((line for line in lines if not any(mark in line for mark in ("`", "#", "//"))), "")
    if line == right:
        return 1.0
    return round(100 * SequenceMatcher(None, line, right).ratio()) / 100 if line and right else 0.0


def classification(prediction: str, right: str, classes: Sequence[str]) -> float:
    """Return one over the number of classes named, if the right one is among them."""
    found_classes = [name for name in classes if name in prediction]
    index = 0
    while index < len(found_classes):
        name = found_classes[index]
        if name in right and name != right:
            found_classes.remove(name)  # quirk: the next name moves here and is skipped
        index += 1
    return 1 / len(found_classes) if right in found_classes else 0.0


def _share(prediction: str, right: str) -> float:
    numbers = re.findall(r"\d+", prediction)
    return numbers.count(right) / len(numbers) if numbers else 0.0


def _f1(predicted: Sequence[str], right: Sequence[str]) -> float:
    same = sum((Counter(predicted) & Counter(right)).values())
    if not same:
        return 0.0
    precision, recall = same / len(predicted), same / len(right)
    return 2 * precision * recall / (precision + recall)


def _words(text: str) -> list[str]:
    kept = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", kept).split()


def _words_zh(text: str) -> list[str]:
    ignored = set(string.punctuation + CHINESE)
    bare = ("".join(c for c in word.lower() if c not in ignored) for word in _cut(text))
    return [word for word in ("".join(word.split()) for word in bare) if word]


def _cut(text: str) -> list[str]:
    try:
        import jieba
    except ImportError as error:
        raise MissingPackage("a Chinese set of LongBench", "jieba", "chinese") from error
    return list(jieba.cut(text, cut_all=False))
