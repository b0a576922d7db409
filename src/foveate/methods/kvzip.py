"""KVzip: tokens that the model needs to repeat its own prompt.

The prompt is read once more after its cache, and a pair scores the highest attention that any token
of the second reading pays to it, so no question has to be known. One ranking over all heads and
layers sets each head's number. A prompt that fits its budget is read once.

The paper rereads texts in pieces of 2,000 tokens, each after an instruction ("Repeat the previous
context:"), and compares a piece with the part of the cache that it repeats (``over="piece"``). It
uses question-answer pairs only to show that they attend to the same pairs of the cache, and does
not score with them.

Ours:

* Images are reread from their embeddings, without the vision tower; with ``pieces="images"`` one by
  one.
* ``reads``: instead of the prompt or beside it, the model's own text, decoded from its full cache:
  questions and answers of its own, answers to the questions in ``asks``, or a transcript.
* ``by="damage"`` ranks pairs by the change that their loss makes to heads' outputs, as a share of
  the residual stream, squared and summed, instead of by the highest attention
  (``stages/score/damage.py``).

``by="contribution"`` is KVzip+, from the paper on KVzap (arXiv:2601.07891): attention times the
norm of the value after the output projection, over the norm of the residual stream that it is added
to.

Cost: rereading the prompt is a second prefill, whose tokens attend to twice as many. Answers are
decoded token by token from the full cache, at most ``longest`` for each question, and read once
more in one pass: little beside a long prompt, much beside a short one. Content that the model does
not mention is not seen. A small model may answer such a request with nothing, as the demo model
does; give it questions that it can answer (``asks``). All of it is paid once per prompt.

Differences from the authors' code: no instruction before the second reading, which changes little
for image embeddings and needs a tokenizer; pieces of a long prompt follow one another without the
last words of the piece before; the softmax is over the whole prompt unless ``over="piece"``.
"""

from __future__ import annotations

from typing import Literal

from foveate.policies.method import Amount, Policy, method
from foveate.policies.parameters import Count, Positive, Share
from foveate.stages import OneRanking, Reconstruction, TopK, Uniform
from foveate.stages.score.reconstruction import By, Over, Pieces, Reads

Heads = Literal["ranked", "even"]


@method("kim2025kvzip", adds=("score", "budget", "select", "when"))
def kvzip(
    *,
    budget: Amount,
    heads: Heads = "ranked",
    floor: Share = 0.0,
    even: Share = 0.0,
    sinks: Count = 1,
    recent: Count = 0,
    chunk: Positive = 2048,
    pieces: Pieces = "tokens",
    over: Over = "prompt",
    reads: Reads = "prompt",
    asks: str = "",
    longest: Positive = 128,
    by: By = "attention",
) -> Policy:
    """Tokens that the model attends to while it reads its prompt a second time; needs no question.

    Score: maximum over the tokens and query heads of the second reading of the softmax (eq. 2,
    sections 3.2 and 3.3).

    The first ``sinks`` tokens stay in every head: a head that keeps few others would otherwise give
    these all of its attention. ``heads`` "ranked" has one ranking over all heads and layers, of
    which a head has at least ``floor`` of an even share; "even" keeps the same number in every
    head.

    ``chunk``, ``pieces`` ("tokens", "images") and ``over`` ("prompt", "piece") set how the prompt
    is reread. ``reads`` sets the text: the "prompt", the model's own "answers" or "transcript", or
    "prompt_and_answers", "prompt_and_transcript". The model's own text needs ``compress(...,
    tokenizer=...)``; ``asks`` gives its questions, with "|" between them. ``by`` is the score of a
    pair: "attention", the highest that it is paid; "contribution", the highest that it contributes
    with it (KVzip+); or "damage", the sum of squared changes that its loss makes to every head's
    output.

    Args:
        heads: One ranking over all heads and layers, or the same number in each.
        even: Part of the budget that all heads share alike, whatever their rank.
        pieces: Unit of rereading: a number of tokens, or an image.
        over: Tokens that attention is shared out over: the whole prompt, or the repeated piece.
        reads: Text that is reread: the prompt, or the model's own text about it.
        asks: Questions that the model answers for rereading; | between questions.
        longest: Maximum tokens of the model's own text.
        by: Score: highest attention, highest contribution, or squared damage to heads' outputs.

    Defaults:
        `chunk`: 2,000 tokens in the release; `sinks`: here (there the system prompt, in kvpress 4)
    """
    ranked = OneRanking(amount=budget, floor=floor, even=even)
    score = Reconstruction(
        chunk=chunk,
        pieces=pieces,
        over=over,
        sinks=sinks if over == "piece" else 1,
        reads=reads,
        asks=asks,
        longest=longest,
        by=by,
    )
    return Policy(
        score=score,
        budget=ranked if heads == "ranked" else Uniform(amount=budget),
        select=TopK(sinks=sinks, recent=recent),
    )
