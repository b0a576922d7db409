"""ROUGE-L of the package ``rouge`` 1.0.1, which MileBench, LongBench and PrefixKV use.

It differs from Lin's and Google's: texts are split at full stops, a longest common subsequence is
taken of every pair of sentences, and the *distinct* words on any of them are counted.

The package is not called. Its recursion ends with a RecursionError for two texts without full stops
that have about a thousand words together: a Chinese summary, or an answer that repeats itself. It
is also three to four times slower, and every evaluation would need it.
"""

from __future__ import annotations

from collections.abc import Sequence

from foveate.prompts.sample import Sample

Words = Sequence[str]


def rouge_l(prediction: str, sample: Sample) -> float:
    """Return the F-measure of the best answer."""
    return max(rouge_l_to(prediction, answer) for answer in sample.answers)


def rouge_l_to(prediction: str, answer: str) -> float:
    """Return the F-measure for one answer (PrefixKV eq. 4); 0 if either text is empty."""
    precision, recall = _rates(prediction, answer)
    return 2 * precision * recall / (precision + recall + 1e-8)


def rouge_l_recall(prediction: str, answer: str) -> float:
    """Return the share of the answer's distinct words that the prediction has in order."""
    return _rates(prediction, answer)[1]


def _rates(prediction: str, answer: str) -> tuple[float, float]:
    """Return precision and recall."""
    predicted, right = _sentences(prediction), _sentences(answer)
    if not predicted or not right:
        return 0.0, 0.0
    common = {word for x in right for y in predicted for word in _common(x, y)}
    precision, recall = (
        len(common) / len({word for sentence in text for word in sentence})
        for text in (predicted, right)
    )
    return precision, recall


def _sentences(text: str) -> list[Words]:
    """Split a text into sentences of words; a blank sentence has one empty word."""
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def _common(x: Words, y: Words) -> list[str]:
    """Return a longest common subsequence, in reverse. Ties drop y's last word."""
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
    """Return the LCS lengths of the first i words of x and the first j of y."""
    rows = [[0] * (len(y) + 1)]
    for word in x:
        above, row = rows[-1], [0]
        for j, other in enumerate(y, 1):
            row.append(above[j - 1] + 1 if word == other else max(above[j], row[-1]))
        rows.append(row)
    return rows
