"""Trains a low-rank update of the language model's attention, so that it retrieves what is seen.

    python -m training.lora --out RUN [--eye RUN/checkpoint.pt] [--steps 500] [--decay 0.4]

Several questions are asked about the same images at once: each sees the images and itself, and
stands at the position at which it would stand alone. The eye does not learn; without ``--eye``
every slot holds its own token's embedding, with it half of the albums are seen by the eye. The
same command goes on where the last one ended.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from foveate_demo import smollm2
from foveate_demo.questions import KINDS, Album
from training.data import Fonts, Reading, vocabulary
from training.fonts import training_fonts
from training.seeing import See, embedded, perfect, trained, wording
from training.train import save, share_of_rate

RANK, ALPHA = 16, 32
ASKED = 6  # questions about one album, at most


class Sample(NamedTuple):
    """One album with its questions: x [n, hidden], positions [n], seen [n, n], labels [n]."""

    x: Tensor
    positions: Tensor
    seen: Tensor
    labels: Tensor


def sample(
    r: Random, fonts: Fonts, see: See, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Sample:
    """Draws an album, and asks some of its questions."""
    album: Album = KINDS[r.choice(list(KINDS))](r, fonts)
    questions = r.sample(album.questions, min(ASKED, len(album.questions)))
    end = tokenizer.convert_ids_to_tokens(tokenizer.eos_token_id)
    table = model.get_input_embeddings()
    *_, first = wording(album, "").rpartition("<image>")
    context = embedded(wording(album, "").removesuffix(first), album, see, model, tokenizer)
    parts, places, labels, owner = [context], [torch.arange(len(context))], [], []
    labels.append(torch.full((len(context),), -100))
    owner.append(torch.zeros(len(context), dtype=torch.long))
    for i, one in enumerate(questions, 1):
        asked = tokenizer(wording(album, one.question).rpartition("<image>")[2])["input_ids"]
        said = tokenizer(f" {one.answer}{end}")["input_ids"]
        parts.append(table(torch.tensor(asked + said)))
        places.append(len(context) + torch.arange(len(asked) + len(said)))
        labels.append(torch.tensor([-100] * len(asked) + said))
        owner.append(torch.full((len(asked) + len(said),), i))
    of = torch.cat(owner)
    seen = (of[:, None] == of[None]) | (of[None] == 0)
    return Sample(torch.cat(parts).detach(), torch.cat(places), seen.tril(), torch.cat(labels))


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
            )
        )
    return Sample(*(torch.stack(x) for x in zip(*padded, strict=True)))


def losses(model: nn.Module, base: PreTrainedModel, b: Sample) -> tuple[Tensor, float]:
    """Cross-entropy of the answers' tokens, and the share of answers that would be right."""
    bias = torch.zeros(b.seen.shape).masked_fill(~b.seen, torch.finfo(torch.float32).min)[:, None]
    hidden = base.model(
        inputs_embeds=b.x, attention_mask=bias, position_ids=b.positions, use_cache=False
    ).last_hidden_state
    said = b.labels[:, 1:] >= 0
    logits = base.lm_head(hidden[:, :-1][said]).float()
    labels = b.labels[:, 1:][said]
    wrong = (logits.argmax(-1) != labels).float()
    ends = labels == base.config.eos_token_id
    answer = ends.cumsum(0) - ends.long()  # which answer each token belongs to
    missed = torch.zeros(int(ends.sum())).index_add(0, answer, wrong)
    return F.cross_entropy(logits, labels), float((missed == 0).float().mean())


def main() -> None:
    """Trains until all steps are done, or the time is over, and writes the update."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--eye", type=Path)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--decay", type=float, default=0.4, help="share of them, at the end")
    parser.add_argument("--hours", type=float, default=100.0, help="at most, in this call")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--albums", type=int, default=4, help="of a batch")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    base, tokenizer = smollm2.load()
    fonts, path = training_fonts(), a.out / "lora.pt"
    words = vocabulary(tokenizer, fonts)
    eyes = [perfect(base, Reading(tokenizer, words), words)]
    if a.eye:
        eyes.append(trained(base, a.eye))
    parts = ["q_proj", "k_proj", "v_proj", "o_proj"]
    peft = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=parts))
    learned = [p for p in peft.parameters() if p.requires_grad]
    step = torch.optim.AdamW(learned, lr=a.rate, betas=(0.9, 0.98), weight_decay=0.0)
    done = 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        done = state["step"]
        set_peft_model_state_dict(peft, state["lora"])
        step.load_state_dict(state["optimiser"])
    r = Random(f"lora/{done}")
    print(f"{sum(p.numel() for p in learned):,} parameters", flush=True)

    def keep() -> None:
        save(
            path,
            {"step": done, "lora": get_peft_model_state_dict(peft), "optimiser": step.state_dict()},
        )

    start, sums = time.time(), []
    end, saved = start + 3600 * a.hours, start
    with (a.out / "log.jsonl").open("a") as log:
        while done < a.steps and time.time() < end:
            rate = a.rate * share_of_rate(done, a.steps, a.decay, warmup=30)
            for group in step.param_groups:
                group["lr"] = rate
            b = batch([sample(r, fonts, r.choice(eyes), base, tokenizer) for _ in range(a.albums)])
            with torch.autocast("cpu", torch.bfloat16):
                loss, right = losses(peft, base, b)
            loss.backward()
            nn.utils.clip_grad_norm_(learned, 1.0)
            step.step()
            step.zero_grad(set_to_none=True)
            done += 1
            sums.append((loss.item(), right))
            if done % 10 == 0:
                mean = [round(sum(x) / len(sums), 4) for x in zip(*sums, strict=True)]
                line = {
                    "step": done,
                    "loss": mean[0],
                    "right": mean[1],
                    "rate": rate,
                    "seconds": round(time.time() - start, 1),
                }
                print(json.dumps(line), file=log, flush=True)
                sums = []
            if time.time() - saved > 240:
                saved = time.time()
                keep()
    keep()
    write(get_peft_model_state_dict(peft), a.out / "lora.safetensors")


def write(state: dict[str, Tensor], path: Path) -> None:
    """The update under the names of the weights it is added to, its scale in B."""
    tensors = {}
    for name, value in state.items():
        where = name.removeprefix("base_model.model.")
        where, kind = where.removesuffix(".weight").rsplit(".lora_", 1)
        scaled = value * (ALPHA / RANK) if kind == "B" else value
        tensors[f"{where}.weight.{kind}"] = scaled.contiguous()
    save_file(tensors, path)


if __name__ == "__main__":
    main()
