"""Training of the vision tower: from the pixels of a row to its tokens' embeddings.

    python -m training.train --out RUN [--steps 12500] [--decay 0.3]
    python -m training.train --out RUN --start OTHER/checkpoint.pt --drawn 0.4 ...

Every slot has its own target, so the language model is not run. The losses are the cross-entropy of
each slot's token (by cosine with the language model's embeddings) and the distance to its
embedding; in the middle layer also the tokens under a patch, the number of tokens before it, and
its column. Half of the pages are practice, lines full of words and numbers. Checkpoints are written
every few minutes; the same command continues an earlier run. The learning rate falls to zero over
the last part of the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from foveate_demo import smollm2
from foveate_demo.scenes import SLOTS
from training.data import STRIPS, Batch, Reading, Scenes, vocabulary
from training.fonts import training_fonts
from training.tower import Eye

WARMUP = 300
BLANK = 0.15  # weight of an empty slot: most are empty, and they are easily learned


class Student(nn.Module):
    """Vision tower with the heads that only training needs."""

    def __init__(self, eye: Eye, table: Tensor):
        super().__init__()
        self.eye = eye
        self.register_buffer("table", table, persistent=False)
        self.sharpness = nn.Parameter(torch.tensor(20.0))
        self.strips = nn.Linear(256, STRIPS * len(table))
        self.before = nn.Linear(256, SLOTS)
        self.column = nn.Linear(256, SLOTS)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses, and the shares of correctly read tokens and rows."""
        seen, middle = self.eye(batch.pixels)
        seen, middle = seen.float(), middle.float()
        target = batch.tokens.flatten(1)
        logits = self.sharpness * F.normalize(seen, dim=-1) @ F.normalize(self.table, dim=-1).T
        text = target > 0
        weight = torch.where(text, 1.0, BLANK)
        each = F.cross_entropy(logits.transpose(1, 2), target, reduction="none")
        reading = (each * weight).sum() / weight.sum()
        scale = self.table.pow(2).sum(-1).mean()
        off = (seen - self.table[target]).pow(2).sum(-1) / scale
        distance = (off * weight).sum() / weight.sum()
        right = (logits.argmax(-1) == target).view_as(batch.tokens)
        rows = right.all(-1)[batch.tokens[..., 0] > 0]
        return {
            "reading": reading,
            "distance": distance,
            "local": self._local(middle, batch),
            "token": right.flatten(1)[text].float().mean(),
            "row": rows.float().mean(),
        }

    def _local(self, middle: Tensor, batch: Batch) -> Tensor:
        """Return the loss of the middle layer, where each patch has to know its tokens, the number
        of tokens before it, and its column.
        """
        spots, tokens = batch.spots, batch.tokens
        b, rows, _ = spots.shape
        inked = spots >= 0
        image, row, slot = torch.nonzero(inked, as_tuple=True)
        strip = spots[image, row, slot]
        names = torch.zeros(b, rows, SLOTS * STRIPS, dtype=torch.long, device=spots.device)
        names[image, row, strip] = tokens[image, row, slot]  # 0: no token has its middle there
        lines = inked.any(-1)  # rows with text; blank rows are easy
        middle = middle.view(b, rows, SLOTS, -1)[lines]
        weight = torch.ones(len(self.table), device=spots.device)
        weight[0] = BLANK
        logits = self.strips(middle).view(-1, len(self.table))
        read = F.cross_entropy(logits, names[lines].flatten(), weight=weight)
        stands = F.one_hot(spots.clamp_min(0) // STRIPS, SLOTS) * inked[..., None]
        before = (stands.sum(2).cumsum(-1) - stands.sum(2))[lines]
        count = F.cross_entropy(self.before(middle).flatten(0, 1), before.flatten())
        own = torch.arange(SLOTS, device=spots.device).expand(len(middle), SLOTS)
        column = F.cross_entropy(self.column(middle).flatten(0, 1), own.flatten())
        return read + 0.5 * count + 0.3 * column


def optimisers(student: Student, rate: float) -> list[torch.optim.Optimizer]:
    """Return Muon for the matrices of the layers, and AdamW for the other parameters."""
    matrices, others = [], []
    for name, p in student.named_parameters():
        (matrices if p.ndim == 2 and "layers" in name else others).append(p)
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=0.02),
    ]


def share_of_rate(done: int, steps: int, decay: float, warmup: int = WARMUP) -> float:
    """Return the factor of the learning rate: linear warm-up, constant, then linear decay to zero
    over the last share ``decay`` of the steps.
    """
    down = (steps - done) / (steps * decay) if decay else 1.0
    return min(1.0, (done + 1) / warmup, down)


def save(path: Path, state: dict) -> None:
    """Write a checkpoint atomically."""
    part = path.with_suffix(".part")
    torch.save(state, part)
    os.replace(part, path)


def main() -> None:
    """Train until all steps are done, or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=12500)
    parser.add_argument("--decay", type=float, default=0.3, help="last share of steps, with decay")
    parser.add_argument("--hours", type=float, default=100.0, help="time limit of this call")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slots", type=int, default=3072, help="slots of a batch")
    parser.add_argument("--start", type=Path, help="checkpoint to start from")
    parser.add_argument("--drawn", type=float, default=0.0, help="share of drawings to be named")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(a.seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, tokenizer = smollm2.load()
    fonts = training_fonts()
    listed = a.out / "vocabulary.json"  # fixed for all continuations of a run
    if not listed.exists():
        listed.write_text(json.dumps(vocabulary(tokenizer, fonts)))
    words = json.loads(listed.read_text())
    table = model.get_input_embeddings().weight.detach()[words].clone()
    student = Student(Eye(model.config), table).to(device)
    del model
    steps, path = optimisers(student, a.rate), a.out / "checkpoint.pt"
    done = 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        done = state["step"]
        student.load_state_dict(state["student"])
        for optimiser, s in zip(steps, state["optimisers"], strict=True):
            optimiser.load_state_dict(s)
    elif a.start:
        student.load_state_dict(torch.load(a.start, weights_only=True)["student"])
    data = Scenes(Reading(tokenizer, words), fonts, a.seed + done, a.slots, a.drawn)
    batches = iter(DataLoader(data, batch_size=None, num_workers=1, prefetch_factor=8))
    size = sum(p.numel() for p in student.eye.parameters())
    print(f"{len(words)} tokens, {len(fonts)} fonts, {size:,} parameters", flush=True)

    def keep() -> None:
        save(
            path,
            {
                "step": done,
                "student": student.state_dict(),
                "optimisers": [optimiser.state_dict() for optimiser in steps],
            },
        )

    start, saved, sums, count = time.time(), time.time(), {}, 0
    end = start + 3600 * a.hours
    with (a.out / "log.jsonl").open("a") as log:
        while done < a.steps and time.time() < end:
            rate = a.rate * share_of_rate(done, a.steps, a.decay)
            for optimiser in steps:
                for group in optimiser.param_groups:
                    group["lr"] = rate
            batch = Batch(*(x.to(device, non_blocking=True) for x in next(batches)))
            with torch.autocast(device, torch.bfloat16):
                found = student(batch)
            loss = found["reading"] + found["distance"] + 0.7 * found["local"]
            loss.backward()
            nn.utils.clip_grad_norm_(student.parameters(), 1.0)
            for optimiser in steps:
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
            done, count = done + 1, count + 1
            for name, value in found.items():
                sums[name] = sums.get(name, 0.0) + float(value.detach())
            if done % 50 == 0:
                line = {name: round(value / count, 4) for name, value in sums.items()}
                line |= {"step": done, "rate": rate, "seconds": round(time.time() - start, 1)}
                print(json.dumps(line), file=log, flush=True)
                sums, count = {}, 0
            if time.time() - saved > 240:
                keep()
                saved = time.time()
    keep()


if __name__ == "__main__":
    main()
