"""Endless batches of generated pictures, with the target token of every slot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset
from transformers import PreTrainedTokenizerBase

from foveate_demo.scenes import (
    CELL,
    SLOTS,
    Scene,
    chart,
    form,
    owned,
    picture,
    receipt,
    sign,
    some_facts,
    table,
)
from foveate_demo.scenes.documents import scene
from foveate_demo.scenes.drawing import WIDTH, Page, any_style
from foveate_demo.scenes.words import FIELDS, OWNED, PEOPLE, PICTURES

Fonts = tuple[Path, ...]
NAMES = tuple(FIELDS)
PRACTICE = 0.5  # share of practice pages
STRIPS = 4  # strips of a cell


class Batch(NamedTuple):
    """Images of the same size, and their tokens.

    pixels: uint8 [b, 3, height, width]. tokens: int64 [b, rows, slots], indices of the vocabulary,
    0 (newline) after the end of a row's text. spots: int64 of the same shape, the strip, a quarter
    of a cell wide, with the middle of the token's ink; -1 for tokens without ink.
    """

    pixels: Tensor
    tokens: Tensor
    spots: Tensor


def any_scene(r: Random, fonts: Fonts, drawn: float = 0.0) -> Scene:
    """Draw a scene: the share ``drawn`` are drawings to be named, half of the others practice."""
    if r.random() < drawn:
        return drawing(r, fonts)
    return practice(r, fonts) if r.random() < PRACTICE else any_kind(r, fonts)


def drawing(r: Random, fonts: Fonts) -> Scene:
    """Draw a small picture with up to two lines of text."""
    return picture(r, fonts, r.choice(PICTURES), some_facts(r, r.randint(0, 2)))


def any_kind(r: Random, fonts: Fonts) -> Scene:
    """Draw a scene of one of the kinds that questions are about."""
    kinds = ["form", "owned", "receipt", "sign", "chart", "table", "picture"]
    kind = r.choices(kinds, [38, 18, 10, 7, 12, 5, 10])[0]
    if kind == "form":
        return form(r, fonts, some_facts(r, r.randint(2, 8)))
    if kind == "owned":
        return owned(r, fonts, r.choice(PEOPLE), some_facts(r, r.randint(2, 6), OWNED))
    if kind == "receipt":
        return receipt(r, fonts, r.randint(2, 6))
    if kind == "sign":
        return sign(r, fonts, some_facts(r, r.randint(1, 3)))
    if kind == "table":
        return table(r, fonts, r.sample(PEOPLE, r.randint(3, 7)), r.choice(OWNED))
    if kind == "picture":
        return drawing(r, fonts)
    return chart(r, fonts, r.randint(3, 7))


def practice(r: Random, fonts: Fonts) -> Scene:
    """Draw a page of long lines with several values each, up to fifteen tokens."""
    page = Page(r.randint(3, 8), any_style(r, fonts), r)
    for row in range(len(page.texts)):
        name = r.choice(NAMES)
        text = f"{name}:"
        if r.random() < 0.3:
            text = f"{r.choice(PEOPLE)}'s {r.choice(OWNED).lower()}:"
        while True:
            more = f"{text} {FIELDS[r.choice(NAMES)](r)}"
            if page.width(more) > WIDTH - 12 or _tokens(more) > SLOTS - 1:
                break
            text = more
        page.line(row, text)
    return scene(page, ())


def _tokens(text: str) -> int:
    """Estimate the number of tokens: a digit or a sign is one, a word two, the space before a
    number one.
    """
    signs = sum(c.isdigit() or c in ":.'" for c in text)
    return signs + sum(2 if word[0].isalpha() else 1 for word in text.split())


class Reading:
    """Converter from a scene's texts to the tokens of its slots."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: list[int]):
        self.tokenizer = tokenizer
        self.index = {token: i for i, token in enumerate(vocabulary)}

    def __call__(self, scene: Scene) -> tuple[np.ndarray, np.ndarray] | None:
        """Return tokens and spots [rows, slots]; None if a row is too long or a token unknown."""
        tokens = np.zeros((len(scene.texts), SLOTS), dtype=np.int64)
        spots = np.full_like(tokens, -1)
        for row, (text, where) in enumerate(zip(scene.texts, scene.where, strict=True)):
            if not text:
                continue
            read = self.tokenizer(text, return_offsets_mapping=True)
            ids = [self.index.get(i) for i in read["input_ids"]]
            if len(ids) >= SLOTS or None in ids:
                return None
            tokens[row, : len(ids)] = ids
            for slot, (start, end) in enumerate(read["offset_mapping"]):
                drawn = [where[i] for i in range(start, end) if i in where and text[i] != " "]
                if drawn:
                    strip = int(sum(drawn) / len(drawn) * STRIPS / CELL)
                    spots[row, slot] = min(SLOTS * STRIPS - 1, strip)
        return tokens, spots


class Scenes(IterableDataset):
    """Endless batches of about ``slots`` slots; images of one batch have the same number of rows.

    ``drawn`` is the share of drawings, in addition to those among all kinds.
    """

    def __init__(
        self, reading: Reading, fonts: Fonts, seed: int, slots: int = 2048, drawn: float = 0.0
    ):
        self.reading, self.fonts, self.seed, self.slots = reading, fonts, seed, slots
        self.drawn = drawn

    def __iter__(self) -> Iterator[Batch]:
        info = torch.utils.data.get_worker_info()
        r = Random(f"{self.seed}/{info.id if info else 0}")
        waiting = defaultdict(list)
        while True:
            scene = any_scene(r, self.fonts, self.drawn)
            read = self.reading(scene)
            if read is None:
                continue
            rows = len(scene.texts)
            waiting[rows].append((np.asarray(scene.image), *read))
            if len(waiting[rows]) * rows * SLOTS >= self.slots:
                images, tokens, spots = zip(*waiting.pop(rows), strict=True)
                pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
                yield Batch(pixels, *(torch.from_numpy(np.stack(x)) for x in (tokens, spots)))


def vocabulary(tokenizer: PreTrainedTokenizerBase, fonts: Fonts, lines: int = 60_000) -> list[int]:
    """Return the tokens of scenes, newline first, then by id.

    They are collected from many scenes, so that they follow any change of the lists of words.
    """
    r, seen, count = Random("vocabulary"), set(), 0
    while count < lines:
        for name, value in some_facts(r, 8):
            for text in (
                f"{name}: {value}",
                f"{r.choice(PEOPLE)}'s {name.lower()}: {value}",
            ):
                seen.update(tokenizer(text)["input_ids"])
                count += 1
    for name in PICTURES:
        seen.update(tokenizer(f"Picture: {name}")["input_ids"])
    for _ in range(1500):
        for text in any_kind(r, fonts).texts:
            seen.update(tokenizer(text)["input_ids"])
    newline = tokenizer("\n")["input_ids"]
    if len(newline) != 1:
        raise ValueError(f"newline is the tokens {newline}, expected one.")
    return [newline[0], *sorted(seen - {newline[0]})]
