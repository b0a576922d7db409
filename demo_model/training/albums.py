"""Training data of the language model: short albums of every kind, long albums, and chats.

A long album has pages with the same fields of many people, or asks for a page by its number, or
mixes charts and lists with pages of people. Some of its pages come in later turns of a chat, after
questions about earlier pages and their answers.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from foveate_demo.processor import worded
from foveate_demo.questions import KINDS, Album, Question, in_image, mixed, same_fields
from training.data import Fonts
from training.seeing import See, embedded

SHORT = 6  # limit of questions about a short album
MANY = 24  # limit of questions about a long album
TURNS = 0.35  # share of long albums that come in turns of a chat
Messages = list[dict[str, Any]]


class Sample(NamedTuple):
    """An album with its questions: embeddings ``x`` [n, hidden], positions [n], attention mask
    ``seen`` [n, n], labels [n].

    The first ``context`` tokens are causal.
    """

    x: Tensor
    positions: Tensor
    seen: Tensor
    labels: Tensor
    context: int


def short(r: Random, fonts: Fonts) -> tuple[Album, Messages]:
    """Draw an album of any kind, with all images in one message."""
    album = KINDS[r.choice(list(KINDS))](r, fonts)
    return album, [_images_message(len(album.images))]


def long(r: Random, fonts: Fonts, limit: int) -> tuple[Album, Messages]:
    """Draw a long album of 4 to ``limit`` similar pages, in one message or in turns."""
    pages = r.randint(4, limit)
    (draw,) = r.choices([same_fields, in_image, mixed], [6, 3, 2])
    album = draw(r, fonts, pages)
    return album, turns(r, album) if r.random() < TURNS else [_images_message(pages)]


def turns(r: Random, album: Album) -> Messages:
    """Return a chat that shows the pages in several turns, and asks about those shown so far."""
    found: Messages = []
    left, there = len(album.images), 0
    while left:
        more = min(left, r.randint(1, max(1, len(album.images) // 2)))
        left, there = left - more, there + more
        found.append(_images_message(more))
        for _ in range(r.randint(0, 2)):
            known = [q for q in album.questions if all(image < there for image, _ in q.evidence)]
            question = r.choice(known)
            found += [
                _text_message("user", question.question),
                _text_message("assistant", question.answer),
            ]
    return found


def _images_message(count: int) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image"}] * count}


def _text_message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def sample(
    r: Random,
    album: Album,
    messages: Messages,
    see: See,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> Sample:
    """Append some of the album's questions to the messages, each as if it were the only one: it
    attends to the messages and itself, and has the positions that it would have alone.
    """
    many = SHORT if len(album.images) < 4 else MANY
    questions = r.sample(album.questions, min(many, len(album.questions)))
    end = tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id)
    table = model.get_input_embeddings()
    context = embedded(_before(messages, album, questions[0]), album, see, model, tokenizer)
    parts, positions, labels, owner = [context], [torch.arange(len(context))], [], []
    labels.append(torch.full((len(context),), -100))
    owner.append(torch.zeros(len(context), dtype=torch.long))
    for i, question in enumerate(questions, 1):
        question_ids = tokenizer(_tail(question))["input_ids"]
        answer_ids = tokenizer(f" {question.answer}{end}")["input_ids"]
        parts.append(table(torch.tensor(question_ids + answer_ids)))
        positions.append(len(context) + torch.arange(len(question_ids) + len(answer_ids)))
        labels.append(torch.tensor([-100] * len(question_ids) + answer_ids))
        owner.append(torch.full((len(question_ids) + len(answer_ids),), i))
    of = torch.cat(owner)
    seen = (of[:, None] == of[None]) | (of[None] == 0)
    x = torch.cat(parts).detach()
    return Sample(x, torch.cat(positions), seen.tril(), torch.cat(labels), len(context))


def _tail(question: Question) -> str:
    return f"\nQuestion: {question.question}\nAnswer:"


def _before(messages: Messages, album: Album, question: Question) -> str:
    """Return the prompt up to the question, which all questions share."""
    asked = [*messages, _text_message("user", question.question)]
    text, _ = worded(asked, numbered=len(album.images) > 1)
    return text.removesuffix(_tail(question))


def batch(samples: list[Sample]) -> Sample:
    """Stack samples, padded on the right; padding attends to itself, so that no row is empty."""
    longest = max(len(item.x) for item in samples)
    padded = []
    for item in samples:
        more = longest - len(item.x)
        seen = torch.eye(longest, dtype=torch.bool)
        seen[: len(item.x), : len(item.x)] = item.seen
        padded.append(
            Sample(
                F.pad(item.x, (0, 0, 0, more)),
                F.pad(item.positions, (0, more)),
                seen,
                F.pad(item.labels, (0, more), value=-100),
                item.context,
            )
        )
    *tensors, contexts = zip(*padded, strict=True)
    return Sample(*(torch.stack(x) for x in tensors), min(contexts))
