"""ROUGE-L as the package ``rouge`` 1.0.1 has it, which MileBench, LongBench and PrefixKV use.

It differs from Lin's and from Google's: texts are cut at full stops, a longest common subsequence
is taken of every pair of sentences, and what counts are the *different* words that are on any.

The package is not called. It walks a sequence by recursion, which two texts that have no full stop
and about a thousand words together end with a RecursionError: a Chinese summary, or an answer that
repeats itself. It takes three to four times as long, and every evaluation would need it.
"""

from __future__ import annotations

from collections.abc import Sequence

from foveate.prompts.sample import Sample

Words = Sequence[str]


def rouge_l(prediction: str, sample: Sample) -> float:
    """The F-measure of the best answer."""
    return max(rouge_l_to(prediction, answer) for answer in sample.answers)


def rouge_l_to(prediction: str, answer: str) -> float:
    """For one answer (PrefixKV eq. 4); 0 where either is empty, which the package refuses."""
    precision, recall = _rates(prediction, answer)
    return 2 * precision * recall / (precision + recall + 1e-8)


def rouge_l_recall(prediction: str, answer: str) -> float:
    """The share of the answer's different words that the prediction has in their order."""
    return _rates(prediction, answer)[1]


def _rates(prediction: str, answer: str) -> tuple[float, float]:
    """Precision and recall."""
    said, right = _sentences(prediction), _sentences(answer)
    if not said or not right:
        return 0.0, 0.0
    common = {word for x in right for y in said for word in _common(x, y)}
    precision, recall = (
        len(common) / len({word for sentence in text for word in sentence})
        for text in (said, right)
    )
    return precision, recall


def _sentences(text: str) -> list[Words]:
    """A sentence of blanks alone has one word, which is empty."""
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _common(x: Words, y: Words) -> list[str]:
    """A longest common subsequence, found from the ends; of two ways, the one that leaves y's last
    word out.
    """
    lengths = _lengths(x, y)
    common, i, j = [], len(x), len(y)
    while i and j:
        if x[i - 1] == y[j - 1]:
            i, j = i - 1, j - 1
            common.append(x[i])
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return common


def _lengths(x: Words, y: Words) -> list[list[int]]:
    """How long it is for the first i words of x and the first j of y."""
    rows = [[0] * (len(y) + 1)]
    for word in x:
        above, row = rows[-1], [0]
        for j, other in enumerate(y, 1):
            row.append(above[j - 1] + 1 if word == other else max(above[j], row[-1]))
        rows.append(row)
    return rows
