"""How many held-out questions the demo model answers: unseen seeds, fonts and values.

    python -m training.evaluate [--count 50] [--out FILE]       what is in the package
    python -m training.evaluate --eye RUN/checkpoint.pt | --perfect  [--lora RUN/lora.safetensors]

An answer counts if it is the expected line, letter by letter. With ``--perfect`` every slot holds
its own token's embedding: what a perfect eye would see. ``--blind`` leaves the images out.
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
TOKENS = 16  # the longest answer
Asked = tuple[Album, Question]
Answer = Callable[[list[Asked]], list[str]]


class Share(NamedTuple):
    """How many of how many, and the interval that holds the true share in 95 % of the cases."""

    right: int
    count: int

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's."""
        found = binomtest(self.right, self.count).proportion_ci(0.95, "wilson")
        return round(found.low, 3), round(found.high, 3)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.right / self.count:.2f} [{low:.2f}, {high:.2f}]"


def held_out(kind: str, count: int) -> list[Asked]:
    """Questions of one kind, each about images of its own."""
    r, fonts = Random(f"held out/{SEED}/{kind}"), unseen_fonts()
    albums = [(KINDS | LONG)[kind](r, fonts) for _ in range(count)]
    return [(album, r.choice(album.questions)) for album in albums]


def shipped() -> tuple[Answer, Answer]:
    """The demo model as users have it: with images, and without."""
    model, processor = vision.load()

    def answer(asked: list[Asked], blind: bool = False) -> list[str]:
        texts = [wording(album, one.question) for album, one in asked]
        if blind:
            texts = [text[text.index("Question:") :] for text in texts]
        images = [] if blind else [page.image for album, _ in asked for page in album.images]
        inputs = processor(images=images, text=texts)
        out = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
        said = out[:, inputs["input_ids"].shape[1] :]
        return [text.strip() for text in processor.batch_decode(said, skip_special_tokens=True)]

    return answer, lambda asked: answer(asked, blind=True)


def embeds(eye: Path | None, lora: Path | None) -> tuple[Answer, Answer]:
    """The language model, given embeddings: the eye of a checkpoint, or a perfect one."""
    model, tokenizer = smollm2.load()
    words = vocabulary(tokenizer, training_fonts())
    see = perfect(model, Reading(tokenizer, words), words) if eye is None else trained(model, eye)
    if lora is not None:
        vision.add_low_rank(model, load_file(lora))

    def answer(asked: list[Asked], see: See | None) -> list[str]:
        prompts = []
        for album, one in asked:
            text = wording(album, one.question)
            text = text if see else text[text.index("Question:") :]
            prompts.append(embedded(text, album, see, model, tokenizer))
        return greedy(model, tokenizer, prompts)

    return lambda asked: answer(asked, see), lambda asked: answer(asked, None)


def greedy(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Iterable[Tensor]
) -> list[str]:
    """Answers to a batch of prompts, padded on the left."""
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


def batches(asked: list[Asked], size: int = 5) -> Iterator[list[Asked]]:
    """Parts of a list."""
    for i in range(0, len(asked), size):
        yield asked[i : i + size]


@torch.no_grad()
def main() -> None:
    """Asks, and prints the share of right answers for every kind of question."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--eye", type=Path)
    parser.add_argument("--perfect", action="store_true")
    parser.add_argument("--lora", type=Path)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS, *LONG])
    parser.add_argument("--count", type=int, default=50, help="of each kind")
    parser.add_argument("--blind", action="store_true", help="no images")
    parser.add_argument("--show", action="store_true", help="print wrong answers")
    parser.add_argument("--out", type=Path, help="write JSON")
    a = parser.parse_args()
    seeing, blind = embeds(a.eye, a.lora) if a.eye or a.perfect else shipped()
    answer = blind if a.blind else seeing
    found = {}
    for kind in a.kinds:
        asked, right = held_out(kind, a.count), 0
        for some in batches(asked):
            for (_, one), said in zip(some, answer(some), strict=True):
                right += said == one.answer
                if a.show and said != one.answer:
                    print(f"   {one.question!r}: {said!r}, expected {one.answer!r}")
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
