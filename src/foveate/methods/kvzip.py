"""KVzip: what the model needs to say its own prompt again.

The prompt is read once more, after its cache, and a pair counts by the most attention that any
token of the second reading pays to it: no question has to be known. One ranking over all heads and
layers says what each head keeps. A prompt that fits its budget is read once.

The paper reads texts again, in pieces of 2,000 tokens, each after an instruction ("Repeat the
previous context:"), and a piece is compared with that part of the cache which it repeats
(``over="piece"``); it looks at question-answer pairs to show that they attend to the same pairs of
the cache, and does not score with them.

Ours: images, which are read again from their embeddings, without the vision tower, if asked for one
by one (``pieces="images"``); and what the model itself says after its full cache, instead of the
prompt or beside it (``reads``): questions and answers of its own, answers to questions that are
given (``asks``), or a transcript.

``by="contribution"`` is KVzip+, of the paper on KVzap (arXiv:2601.07891): attention counts times
the length of the value, after the output projection, over that of what it is added to.

Ours too: ``by="damage"``, which ranks pairs by what heads' outputs would lose with them, as a share
of the residual stream, squared and added up, instead of by the most attention
(``stages/score/damage.py``).

What it costs: reading the prompt again is a second prefill, whose tokens attend to twice as many.
Answers are decoded token by token from the full cache, at most ``longest`` for each question, and
read once more in one pass: little beside a long prompt, much beside a short one, and what the model
does not say is not seen. A small model may answer such a request with nothing, as the demo model
does: ask it what it can answer (``asks``). All of it is paid once a prompt.

Departs from the authors' code in: no instruction before the second reading, which for image
embeddings changes little and needs a tokenizer; pieces of a long prompt follow one another without
the last words of the piece before; the softmax, which is over the whole prompt unless
``over="piece"``.
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
    """Keeps what the model attends to as it reads its prompt a second time; needs no question.

    The first ``sinks`` tokens stay in every head: one that keeps few others would otherwise give
    these all of its attention.
    ``heads`` "ranked" has one ranking over all heads and layers, of which a head has at least
    ``floor`` of an even share; "even" keeps as many in every head.

    ``chunk``, ``pieces`` ("tokens", "images") and ``over`` ("prompt", "piece") say how the prompt
    is read again; ``reads`` what is: the "prompt", the model's own "answers" or "transcript", or
    "prompt_and_answers", "prompt_and_transcript". The model's own need
    ``compress(..., tokenizer=...)``; what it is asked may be given in ``asks``, with "|" between
    questions. ``by`` says what counts of a pair: the most attention that it is paid, the most that
    it contributes with it ("contribution", KVzip+), or ("damage") the sum of the squares of what
    every head's output would lose with it.

    Args:
        heads: One ranking over all heads and layers, or the same number in each.
        even: The part of the budget that all heads share alike, whatever their rank.
        pieces: What a piece is: so many tokens, or an image.
        over: Whether attention is shared out over the whole prompt, or a piece.
        reads: What is read again: the prompt, or what the model says of it.
        asks: What the model is asked for answers to read again; | between questions.
        longest: The most tokens of what the model itself says.
        by: The most attention, the most contribution, or the squared damage to heads' outputs.

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
