"""How many questions the language model answers from what the eye, or a perfect eye, sees.

    python -m training.evaluate [--eye RUN/checkpoint.pt] [--kinds document same ...] [--count 100]

Without ``--eye`` every slot holds its own token's embedding: what a perfect eye would see.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from foveate.demo import smollm2
from foveate.demo.scenes import Scene
from training.data import Reading, vocabulary
from training.fonts import training_fonts, unseen_fonts
from training.questions import KINDS, Question, prompt
from training.tower import Eye

See = Callable[[Scene], Tensor]  # the embeddings of an image's slots, [slots, hidden]


def perfect(model: PreTrainedModel, reading: Reading, words: list[int]) -> See:
    """An eye that never errs."""
    table = model.get_input_embeddings().weight

    def see(scene: Scene) -> Tensor:
        read = reading(scene)
        if read is None:
            raise ValueError(f"this scene has tokens that the vocabulary lacks: {scene.says}")
        return table[torch.tensor(words)[torch.from_numpy(read[0]).flatten()]]

    return see


def trained(model: PreTrainedModel, checkpoint: Path) -> See:
    """The eye of a checkpoint."""
    eye = Eye(model.config).eval()
    state = torch.load(checkpoint, weights_only=True)["student"]
    eye.load_state_dict({k[4:]: v for k, v in state.items() if k.startswith("eye.")})

    def see(scene: Scene) -> Tensor:
        pixels = torch.from_numpy(np.asarray(scene.image).copy()).permute(2, 0, 1)[None]
        return eye(pixels)[0][0]

    return see


def embedded(
    q: Question, see: See | None, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Tensor:
    """The prompt as embeddings [tokens, hidden]; ``see`` of None leaves the images out."""
    table = model.get_input_embeddings()
    pieces = prompt(q).split("<image>")
    parts: list[Tensor] = []
    for i, piece in enumerate(pieces):
        if piece:
            parts.append(table(torch.tensor(tokenizer(piece)["input_ids"])))
        if i < len(q.images) and see is not None:
            parts.append(see(q.images[i]))
    return torch.cat(parts)


def answers(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, prompts: Iterable[Tensor]
) -> list[str]:
    """Greedy answers, up to the end of the line; a batch padded on the left."""
    prompts = list(prompts)
    longest = max(len(p) for p in prompts)
    x = torch.zeros(len(prompts), longest, prompts[0].shape[1])
    mask = torch.zeros(len(prompts), longest, dtype=torch.long)
    for i, p in enumerate(prompts):
        x[i, longest - len(p) :], mask[i, longest - len(p) :] = p, 1
    out = model.generate(inputs_embeds=x, attention_mask=mask, max_new_tokens=12, do_sample=False,
                         pad_token_id=tokenizer.pad_token_id)  # fmt: skip
    texts = tokenizer.batch_decode(out, skip_special_tokens=True)
    return [text.split("\n")[0].strip().rstrip(".") for text in texts]


@torch.no_grad()
def main() -> None:
    """Asks, and prints the share of right answers by kind of question."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--eye", type=Path)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--blind", action="store_true", help="no images")
    parser.add_argument("--show", action="store_true")
    a = parser.parse_args()
    model, tokenizer = smollm2.load()
    words = vocabulary(tokenizer, training_fonts())
    reading = Reading(tokenizer, words)
    see: See | None = perfect(model, reading, words) if a.eye is None else trained(model, a.eye)
    for kind in a.kinds:
        r, fonts = Random(f"{a.seed}/{kind}"), unseen_fonts()
        questions = [KINDS[kind](r, fonts) for _ in range(a.count)]
        right, tokens = 0, 0
        for i in range(0, a.count, 10):
            some = questions[i : i + 10]
            prompts = [embedded(q, None if a.blind else see, model, tokenizer) for q in some]
            tokens += sum(len(p) for p in prompts)
            for q, answer in zip(some, answers(model, tokenizer, prompts), strict=True):
                right += answer == q.answer
                if a.show and answer != q.answer:
                    print(f"   {q.question!r} {q.lead!r}: {answer!r}, expected {q.answer!r}")
        print(f"{kind:12} {right / a.count:.2f}  ({tokens / a.count:.0f} tokens)", flush=True)


if __name__ == "__main__":
    main()
