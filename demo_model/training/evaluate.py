"""Accuracy of the demo model on held-out questions: unseen seeds, fonts and values.

    python -m training.evaluate [--count 50] [--out FILE]       the weights in the package
    python -m training.evaluate --eye RUN/checkpoint.pt | --perfect  [--lora RUN/lora.safetensors]

An answer counts if it equals the expected line exactly. With ``--perfect`` every slot gets its own
token's embedding, as from a perfect vision tower. ``--blind`` leaves the images out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from scipy.stats import binomtest
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from foveate_demo import smollm2, vision
from foveate_demo.questions import KINDS, LONG, Album, Question
from training.data import Reading, vocabulary
from training.fonts import training_fonts, unseen_fonts
from training.seeing import See, embedded, perfect, trained, wording

SEED = 1
TOKENS = 16  # tokens of the longest answer
Case = tuple[Album, Question]
Answer = Callable[[list[Case]], list[str]]


class Share(NamedTuple):
    """Share of right answers, with its 95 % confidence interval."""

    right: int
    count: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % confidence interval."""
        found = binomtest(self.right, self.count).proportion_ci(0.95, "wilson")
        return round(found.low, 3), round(found.high, 3)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.right / self.count:.2f} [{low:.2f}, {high:.2f}]"


def held_out(kind: str, count: int) -> list[Case]:
    """Draw ``count`` questions of one kind, each about its own images."""
    r, fonts = Random(f"held out/{SEED}/{kind}"), unseen_fonts()
    albums = [(KINDS | LONG)[kind](r, fonts) for _ in range(count)]
    return [(album, r.choice(album.questions)) for album in albums]


def shipped() -> tuple[Answer, Answer]:
    """Return answering functions of the packaged demo model, with images and without."""
    model, processor = vision.load()

    def answer(cases: list[Case], blind: bool = False) -> list[str]:
        texts = [wording(album, question.question) for album, question in cases]
        if blind:
            texts = [text[text.index("Question:") :] for text in texts]
        images = [] if blind else [page.image for album, _ in cases for page in album.images]
        inputs = processor(images=images, text=texts)
        out = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
        new_tokens = out[:, inputs["input_ids"].shape[1] :]
        return [
            text.strip() for text in processor.batch_decode(new_tokens, skip_special_tokens=True)
        ]

    return answer, lambda cases: answer(cases, blind=True)


def embeds(eye: Path | None, lora: Path | None) -> tuple[Answer, Answer]:
    """Return answering functions of the language model on embeddings, with images and without. The
    embeddings come from a checkpoint's vision tower, or from a perfect one if ``eye`` is None.
    """
    model, tokenizer = smollm2.load()
    words = vocabulary(tokenizer, training_fonts())
    see = perfect(model, Reading(tokenizer, words), words) if eye is None else trained(model, eye)
    if lora is not None:
        vision.add_low_rank(model, load_file(lora))

    def answer(cases: list[Case], see: See | None) -> list[str]:
        prompts = []
        for album, question in cases:
            text = wording(album, question.question)
            text = text if see else text[text.index("Question:") :]
            prompts.append(embedded(text, album, see, model, tokenizer))
        return greedy(model, tokenizer, prompts)

    return lambda cases: answer(cases, see), lambda cases: answer(cases, None)


def greedy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Iterable[Tensor]
) -> list[str]:
    """Generate answers to a batch of prompts [tokens, hidden], padded on the left."""
    prompts = list(prompts)
    longest = max(len(p) for p in prompts)
    x = torch.zeros(len(prompts), longest, prompts[0].shape[1])
    mask = torch.zeros(len(prompts), longest, dtype=torch.long)
    for i, p in enumerate(prompts):
        x[i, longest - len(p) :], mask[i, longest - len(p) :] = p, 1
    out = model.generate(
        inputs_embeds=x,
        attention_mask=mask,
        max_new_tokens=TOKENS,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
    )
    return [text.strip() for text in tokenizer.batch_decode(out, skip_special_tokens=True)]


def batches(cases: list[Case], size: int = 5) -> Iterator[list[Case]]:
    """Split a list into parts of ``size``."""
    for i in range(0, len(cases), size):
        yield cases[i : i + size]


@torch.no_grad()
def main() -> None:
    """Answer the questions, and print the share of right answers for every kind."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--eye", type=Path)
    parser.add_argument("--perfect", action="store_true")
    parser.add_argument("--lora", type=Path)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS, *LONG])
    parser.add_argument("--count", type=int, default=50, help="questions of each kind")
    parser.add_argument("--blind", action="store_true", help="no images")
    parser.add_argument("--show", action="store_true", help="print wrong answers")
    parser.add_argument("--out", type=Path, help="write JSON")
    a = parser.parse_args()
    seeing, blind = embeds(a.eye, a.lora) if a.eye or a.perfect else shipped()
    answer = blind if a.blind else seeing
    found = {}
    for kind in a.kinds:
        cases, right = held_out(kind, a.count), 0
        for part in batches(cases):
            for (_, question), reply in zip(part, answer(part), strict=True):
                right += reply == question.answer
                if a.show and reply != question.answer:
                    print(f"   {question.question!r}: {reply!r}, expected {question.answer!r}")
        share = found[kind] = Share(right, a.count)
        print(f"{kind:32} {share}", flush=True)
    if a.out:
        rows = {
            k: {"right": s.right, "count": s.count, "interval": s.interval}
            for k, s in found.items()
        }
        a.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
