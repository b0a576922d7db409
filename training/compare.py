"""Can the demo model tell methods apart? Held-out questions, answered from compressed caches.

    python -m training.compare [--count 50] [--out FILE]

The oracle keeps the rows in which the answer stands; all methods keep the last 16 tokens of the
prompt. A method is asked the questions that ``training.evaluate`` asks.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import foveate
from foveate.core.layer import Layer
from foveate.core.policy import Policy
from foveate.core.spec import stage
from foveate.demo import vision
from foveate.demo.processor import COLUMNS
from foveate.demo.questions import Album, Question
from foveate.stages.budget import Uniform
from foveate.stages.select import TopK
from training.evaluate import TOKENS, Share, held_out
from training.seeing import wording

WINDOW = 16
KINDS = ("document", "three images, different fields", "three images, same fields")
BUDGETS = ("33%", "20%", "10%")
METHODS = ("oracle", "snapkv", "mixkv", "lookm", "vnorm", "h2o", "streaming_llm", "random")


@stage("evidence")
class Evidence:
    """Ranks the tokens at these places of the prompt first, then later ones before earlier."""

    places: tuple[int, ...]

    def queries(self, tokens: int) -> int:
        """None are read."""
        return 0

    def __call__(self, layer: Layer) -> Float[Tensor, "b h n"]:
        """More than one for evidence."""
        wanted = torch.isin(layer.pos, torch.tensor(self.places))
        return wanted.float() + layer.pos / (layer.pos.max() + 1)


def policy(name: str, budget: str, evidence: tuple[int, ...]) -> Policy:
    """The method at the budget."""
    if name == "oracle":
        return Policy(score=Evidence(places=evidence), budget=Uniform(amount=budget),
                      select=TopK(recent=WINDOW))  # fmt: skip
    option = {"snapkv": "window", "mixkv": "window", "random": "recent", "vnorm": "recent"}.get(
        name
    )
    return foveate.policy(f"{name}:budget={budget}" + (f",{option}={WINDOW}" if option else ""))


def places(album: Album, question: Question, visual: Tensor) -> tuple[int, ...]:
    """Where in the prompt the rows stand that hold the answer."""
    where = torch.nonzero(visual).flatten().tolist()
    starts, start = [], 0
    for page in album.images:
        starts.append(start)
        start += len(page.says) * COLUMNS
    return tuple(
        where[starts[image] + row * COLUMNS + slot]
        for image, row in question.evidence
        for slot in range(COLUMNS)
    )


@torch.no_grad()
def main() -> None:
    """Asks every question of every method, and prints the share of right answers."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=50, help="of each kind of question")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    model, processor = vision.load()
    asked = [one for kind in KINDS for one in held_out(kind, a.count)]
    cells = [("full", "100%"), *((m, b) for b in BUDGETS for m in a.methods)]
    right = dict.fromkeys(cells, 0)
    for done, (album, one) in enumerate(asked, 1):
        text = wording(album, one.question)
        inputs: dict[str, Any] = dict(processor([page.image for page in album.images], text))
        evidence = places(album, one, inputs["input_ids"][0] == model.config.image_token_id)
        for name, budget in cells:
            chosen = foveate.policy("full") if name == "full" else policy(name, budget, evidence)
            with foveate.compress(model, chosen):
                out = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
            said = processor.decode(out[0, inputs["input_ids"].shape[1] :], True)
            right[name, budget] += said.strip() == one.answer
        if done % 10 == 0:
            print(f"{done} of {len(asked)}", right, flush=True)
    for (name, budget), n in right.items():
        print(f"{budget:5} {name:14} {Share(n, len(asked))}")
    if a.out:
        rows = [
            {"method": name, "budget": budget, "right": n, "count": len(asked),
             "interval": Share(n, len(asked)).interval}
            for (name, budget), n in right.items()
        ]  # fmt: skip
        a.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
