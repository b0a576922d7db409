"""Chats of 20 turns about eight pages: right answers under policies, by the age of the page.

    python -m benchmarks.quality.turns [--conversations 3] [--only-write]

The demo model holds drawn conversations with `foveate.Chat`. Pages come in over the turns, and each
turn asks about a page that was shown in it or earlier. After each question, every chat continues
with the full cache's answer, so that all policies answer the same questions after the same
conversation. For "compress once", the conversation up to the question is read in one prompt, which
is compressed once at the same share. Answers are written per conversation and policy, and the same
command continues an interrupted run. Then it writes benchmarks/results/turns.md and .json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from transformers import LogitsProcessor, LogitsProcessorList

import foveate
from benchmarks.output import write
from benchmarks.quality.asking import common_start
from benchmarks.quality.turns_page import CHAT, FULL, ONCE, measured, page
from foveate.hf import Session, branch, compress, record
from foveate.hf.measuring.answer import greedy, teacher_forced
from foveate.hf.probe.questions import ends
from foveate.hf.saving.identity import ModelIdentity
from foveate.loading.hardware import versions_of_results
from foveate.loading.model import Loaded, load
from foveate.policies.policy import Policy
from foveate.prompts.messages import Message
from foveate_demo import PROFILES
from foveate_demo.questions import Question, same_fields
from foveate_lab.eval.results import Results, read
from foveate_lab.eval.tasks.drawn import FONTS

RUNS = Path(__file__).parents[1] / "runs" / "turns"
METHODS = {
    "recommended": f"recommended:profile={PROFILES / 'recommended.safetensors'}",
    "kvzip": "kvzip",
    "snapkv": "snapkv:window=0.25",  # the default window alone exceeds 10 % of a page
}
SHARES = ("20%", "10%")
IN_BYTES = tuple(f"{share} in bytes" for share in SHARES)
"""Budgets in bytes: these shares of the full cache at the conversation's end."""
TURNS, PAGES, LAST_PAGE = 20, 8, 10  # pages come in up to this turn
LONGEST = 16  # tokens of an answer
SEED = 0
Row = dict[str, Any]


class Turn(NamedTuple):
    """Pages that a turn shows, its question, and the turns since that page was shown."""

    images: tuple[Any, ...]
    question: Question
    age: int


def conversation(number: int, turns: int = TURNS, pages: int = PAGES) -> list[Turn]:
    """Draw a conversation; no question is asked twice."""
    r = Random(f"turns/{SEED}/{number}")
    album = same_fields(r, FONTS, pages)
    last = min(LAST_PAGE, turns - 1)
    shown = [0, *sorted(r.sample(range(1, last + 1), pages - 1))]
    left, drawn = list(album.questions), []
    for turn in range(turns):
        question = r.choice([q for q in left if shown[q.evidence[0][0]] <= turn])
        left.remove(question)
        images = [p.image for p, at in zip(album.images, shown, strict=True) if at == turn]
        drawn.append(Turn(tuple(images), question, turn - shown[question.evidence[0][0]]))
    return drawn


class Following(LogitsProcessor):
    """Logits processor that records the likeliest tokens, and generates given ones instead."""

    def __init__(self, ids: Sequence[int]):
        self.ids, self.predicted = ids, list[int]()

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self.ids[len(self.predicted)]] = 0.0
        self.predicted.append(int(scores.argmax(-1)))
        return forced


class Asked(NamedTuple):
    """Conversation with the full cache's answers, as tokens and as texts, and its final bytes."""

    number: int
    turns: Sequence[Turn]
    ids: Sequence[Sequence[int]]
    texts: Sequence[str]
    end_bytes: int

    def policy(self, method: str, budget: str) -> Policy:
        """Return the policy at a budget; one in bytes is a share of the full cache at the end."""
        share, _, unit = budget.partition(" in ")
        amount = f"{self.end_bytes * int(share[:-1]) // 100 / 1e6:.3f}MB" if unit else share
        return foveate.policy(METHODS[method], budget=amount)

    def messages(self, turn: int) -> list[Message]:
        """Return all messages up to a turn's question."""
        found: list[Message] = []
        for asked, text in zip(self.turns[: turn + 1], self.texts, strict=False):
            parts = [{"type": "image", "image": image} for image in asked.images]
            question = {"type": "text", "text": asked.question.question}
            found += [{"role": "user", "content": [*parts, question]}]
            found += [{"role": "assistant", "content": text}]
        return found[:-1]


def judged(
    loaded: Loaded,
    asked: Asked,
    turn: int,
    predicted: Sequence[int],
    free: Callable[[], Sequence[int]],
) -> Row:
    """Score an answer by the tokens predicted while the full cache's answer was fed.

    ``free`` answers on its own; needed only if the first different token may still be right.
    """
    full, question = list(asked.ids[turn]), asked.turns[turn].question
    accepted = (question.answer, question.value)
    start = common_start(predicted, full)
    text = _text(loaded, start)
    if start != full and any(answer.startswith(text) for answer in accepted):
        text = _text(loaded, free())
    return {"right": float(text in accepted), "same": float(start == full)}


def _text(loaded: Loaded, ids: Sequence[int]) -> str:
    text: str = loaded.tokenizer.decode(ids, skip_special_tokens=True)
    return text.strip()


def new_chat(loaded: Loaded, policy: Policy | str) -> foveate.Chat:
    """Return an empty chat whose images are numbered from the first on."""
    style = {"add_vision_id": True}
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": LONGEST}
    return foveate.Chat(loaded.model, loaded.reader, policy, template_kwargs=style, **options)


def full_rows(loaded: Loaded, number: int, turns: Sequence[Turn]) -> Iterator[Row]:
    """Yield the full cache's answers."""
    (end,) = ends(loaded.model)
    with new_chat(loaded, FULL) as chat:
        for turn, asked in enumerate(turns):
            answer = chat.say(asked.question.question, images=asked.images)
            ids = [*answer.ids.tolist(), *[end] * (answer.ended == "eos")]
            text = answer.text.strip()
            right = float(text in (asked.question.answer, asked.question.value))
            row = _row(CHAT, number, turn, FULL, asked)
            stored = {"pairs": answer.stats.kept_tokens, "end_bytes": chat.held.bytes}
            yield {**row, "right": right, "same": 1.0, "ids": ids, "text": text, **stored}


def chat_rows(loaded: Loaded, asked: Asked, method: str, budget: str) -> Iterator[Row]:
    """Yield a policy's answers in one chat."""
    with new_chat(loaded, asked.policy(method, budget)) as chat:
        for turn, shown in enumerate(asked.turns):
            before, following = chat.fork(), Following(asked.ids[turn])
            new: Row = {"text": shown.question.question, "images": shown.images}
            forced = LogitsProcessorList([following])
            answer = chat.say(**new, logits_processor=forced, max_new_tokens=len(following.ids))
            with before:

                def free(chat: foveate.Chat = before, new: Any = new) -> list[int]:
                    found: list[int] = chat.say(**new).ids.tolist()
                    return found

                score = judged(loaded, asked, turn, following.predicted, free)
            row = _row(CHAT, asked.number, turn, f"{method}:{budget}", shown)
            yield {**row, **score, "pairs": answer.stats.kept_tokens}


@torch.no_grad()
def once_rows(
    loaded: Loaded, asked: Asked, turn: int, cells: Sequence[tuple[str, str]]
) -> Iterator[Row]:
    """Yield each policy's answer to one question after one prompt, compressed once."""
    messages = asked.messages(turn)
    inputs = loaded.reader.apply_chat_template(messages, tokenize=True, add_vision_id=True)
    recording = record(loaded.model, sums=False, **inputs)
    for method, budget in cells:
        policy = asked.policy(method, budget)
        with compress(loaded.model, policy, tokenizer=loaded.tokenizer) as session:
            cache = branch(session, recording)
            pairs = session.stats.kept_tokens
            forced = teacher_forced(session, cache, recording.logits, asked.ids[turn])
            predicted = forced.logits.argmax(-1).tolist()

            def free(session: Session = session) -> list[int]:
                again = branch(session, recording)
                return greedy(loaded.model, again, recording.logits, LONGEST)

            score = judged(loaded, asked, turn, predicted, free)
        row = _row(ONCE, asked.number, turn, f"{method}:{budget}", asked.turns[turn])
        yield {**row, **score, "pairs": pairs, "tokens": recording.tokens}


def _row(task: str, number: int, turn: int, spec: str, asked: Turn) -> Row:
    return {"task": task, "sample": f"{number}/{turn}", "spec": spec, "age": asked.age}


def _is_missing(results: Results, task: str, number: int, spec: str) -> bool:
    return any((task, f"{number}/{turn}", spec) not in results for turn in range(TURNS))


def answered_in_full(results: Results, loaded: Loaded, number: int) -> Asked:
    """Return a conversation with the full cache's answers, after generating them if missing."""
    turns = conversation(number)
    if _is_missing(results, CHAT, number, FULL):
        results.take(list(full_rows(loaded, number, turns)))
    rows = {row["sample"]: row for row in results.rows if row["spec"] == FULL}
    full = [rows[f"{number}/{turn}"] for turn in range(TURNS)]
    ids, texts = [row["ids"] for row in full], [row["text"] for row in full]
    return Asked(number, turns, ids, texts, full[-1]["end_bytes"])


def answer_missing(
    results: Results, loaded: Loaded, number: int, cells: Sequence[tuple[str, str]]
) -> None:
    """Hold the chats of one conversation that are missing; write each when it ends."""
    asked = answered_in_full(results, loaded, number)
    for method, budget in cells:
        if _is_missing(results, CHAT, number, f"{method}:{budget}"):
            results.take(list(chat_rows(loaded, asked, method, budget)))
            print(f"conversation {number}: {method} at {budget}", flush=True)


def answer_missing_once(
    results: Results, loaded: Loaded, number: int, cells: Sequence[tuple[str, str]]
) -> None:
    """Answer the missing questions of one conversation after one compression each.

    The latest comes first: by then, a chat has compressed most often.
    """
    asked = answered_in_full(results, loaded, number)
    for turn in reversed(range(TURNS)):
        sample = f"{number}/{turn}"
        left = [cell for cell in cells if (ONCE, sample, ":".join(cell)) not in results]
        results.take(list(once_rows(loaded, asked, turn, left)) if left else ())
        print(f"conversation {number}: question {turn} after one compression", flush=True)


def main() -> None:
    """Hold the conversations, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--conversations", type=int, default=3, help=f"of {TURNS} questions each")
    parser.add_argument("--only-write", action="store_true", help="write the results so far")
    a = parser.parse_args()
    shares, in_bytes = (
        [(method, budget) for budget in budgets for method in METHODS]
        for budgets in (SHARES, IN_BYTES)
    )
    if not a.only_write:
        loaded = load("demo")
        weights = ModelIdentity.of(loaded.model).weights
        about = {"model": "demo", "seed": SEED, "weights": weights, **versions_of_results()}
        with Results(RUNS, about, resume=True) as results:
            for number in range(a.conversations):
                answer_missing(results, loaded, number, [*shares, *in_bytes])
            for number in range(a.conversations):
                answer_missing_once(results, loaded, number, shares)
    found: Mapping[str, Any] = measured(read(RUNS).rows)
    write("turns", page(found), found)


if __name__ == "__main__":
    main()
