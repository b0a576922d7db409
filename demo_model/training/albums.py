"""What the language model is asked while it learns: short albums of every kind, long ones, chats.

A long album has pages of the same fields, of many people, or asks for a page by its number, or
mixes charts and lists with pages of people; some of its pages come in later turns of a chat, after
questions about earlier ones and their answers.
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

SHORT = 6  # questions about a short album, at most
MANY = 24  # about a long one
TURNS = 0.35  # share of the long ones that come in turns
Messages = list[dict[str, Any]]


class Sample(NamedTuple):
    """One album with its questions: x [n, hidden], positions [n], seen [n, n], labels [n].

    The first ``context`` tokens are causal.
    """

    x: Tensor
    positions: Tensor
    seen: Tensor
    labels: Tensor
    context: int


def short(r: Random, fonts: Fonts) -> tuple[Album, Messages]:
    """An album of any kind, whole."""
    album = KINDS[r.choice(list(KINDS))](r, fonts)
    return album, [_shown(len(album.images))]


def long(r: Random, fonts: Fonts, most: int) -> tuple[Album, Messages]:
    """Up to ``most`` pages that are alike, at once or in turns."""
    pages = r.randint(4, most)
    (draw,) = r.choices([same_fields, in_image, mixed], [6, 3, 2])
    album = draw(r, fonts, pages)
    return album, turns(r, album) if r.random() < TURNS else [_shown(pages)]


def turns(r: Random, album: Album) -> Messages:
    """A chat that brings the pages little by little, and asks about those that it has brought."""
    found: Messages = []
    left, there = len(album.images), 0
    while left:
        more = min(left, r.randint(1, max(1, len(album.images) // 2)))
        left, there = left - more, there + more
        found.append(_shown(more))
        for _ in range(r.randint(0, 2)):
            known = [q for q in album.questions if all(image < there for image, _ in q.evidence)]
            asked = r.choice(known)
            found += [_said("user", asked.question), _said("assistant", asked.answer)]
    return found


def _shown(count: int) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image"}] * count}


def _said(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def sample(
    r: Random,
    album: Album,
    messages: Messages,
    see: See,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> Sample:
    """Asks some of the album's questions after the messages: each as if it stood alone."""
    many = SHORT if len(album.images) < 4 else MANY
    questions = r.sample(album.questions, min(many, len(album.questions)))
    end = tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id)
    table = model.get_input_embeddings()
    context = embedded(_before(messages, questions[0]), album, see, model, tokenizer)
    parts, places, labels, owner = [context], [torch.arange(len(context))], [], []
    labels.append(torch.full((len(context),), -100))
    owner.append(torch.zeros(len(context), dtype=torch.long))
    for i, one in enumerate(questions, 1):
        asked = tokenizer(_tail(one))["input_ids"]
        said = tokenizer(f" {one.answer}{end}")["input_ids"]
        parts.append(table(torch.tensor(asked + said)))
        places.append(len(context) + torch.arange(len(asked) + len(said)))
        labels.append(torch.tensor([-100] * len(asked) + said))
        owner.append(torch.full((len(asked) + len(said),), i))
    of = torch.cat(owner)
    seen = (of[:, None] == of[None]) | (of[None] == 0)
    x = torch.cat(parts).detach()
    return Sample(x, torch.cat(places), seen.tril(), torch.cat(labels), len(context))


def _tail(one: Question) -> str:
    return f"\nQuestion: {one.question}\nAnswer:"


def _before(messages: Messages, one: Question) -> str:
    """The prompt up to the question: what all of them share."""
    text, _ = worded([*messages, _said("user", one.question)])
    return text.removesuffix(_tail(one))


def batch(samples: list[Sample]) -> Sample:
    """Padded on the right; what is padded sees itself."""
    longest = max(len(one.x) for one in samples)
    padded = []
    for one in samples:
        more = longest - len(one.x)
        seen = torch.eye(longest, dtype=torch.bool)
        seen[: len(one.x), : len(one.x)] = one.seen
        padded.append(
            Sample(
                F.pad(one.x, (0, 0, 0, more)),
                F.pad(one.positions, (0, more)),
                seen,
                F.pad(one.labels, (0, more), value=-100),
                one.context,
            )
        )
    *tensors, contexts = zip(*padded, strict=True)
    return Sample(*(torch.stack(x) for x in tensors), min(contexts))
