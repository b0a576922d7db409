"""Training of a low-rank update of the language model's attention, for retrieval from images.

    python -m training.lora --out RUN [--eye RUN/checkpoint.pt] [--steps 500] [--decay 0.4]
    python -m training.lora --out RUN --shipped --pages 16 ...    continues the package's weights

A batch has several questions about the same images: each attends to the images and itself, and has
the positions that it would have alone. The vision tower is frozen. Without ``--eye`` every slot
gets its own token's embedding; with it half of the albums go through that tower, and with
``--shipped`` two of three go through the package's tower. With ``--pages`` the share ``--long`` of
the steps is about a long album (``training.albums``). The same command continues an earlier run.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from random import Random

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from foveate_demo import smollm2
from foveate_demo.vision import WEIGHTS
from training.albums import Sample, batch, long, sample, short
from training.attention import CONTEXT_FIRST
from training.data import Fonts, Reading, vocabulary
from training.fonts import training_fonts
from training.seeing import See, perfect, shipped, trained
from training.train import save, share_of_rate

RANK, ALPHA = 16, 32


def losses(model: nn.Module, base: PreTrainedModel, b: Sample) -> tuple[Tensor, float]:
    """Return the cross-entropy of the answers' tokens, and the share of right answers."""
    bias = torch.zeros(b.seen.shape).masked_fill(~b.seen, torch.finfo(torch.float32).min)[:, None]
    hidden = base.model(
        inputs_embeds=b.x,
        attention_mask=bias,
        position_ids=b.positions,
        use_cache=False,
        context=b.context,
    ).last_hidden_state
    answered = b.labels[:, 1:] >= 0
    logits = base.lm_head(hidden[:, :-1][answered]).float()
    labels = b.labels[:, 1:][answered]
    wrong = (logits.argmax(-1) != labels).float()
    ends = labels == base.config.eos_token_id
    answer = ends.cumsum(0) - ends.long()  # index of the answer of each token
    missed = torch.zeros(int(ends.sum())).index_add(0, answer, wrong)
    return F.cross_entropy(logits, labels), float((missed == 0).float().mean())


def main() -> None:
    """Train until all steps are done, or the time is over, and write the update."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--eye", type=Path)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--decay", type=float, default=0.4, help="last share of steps, with decay")
    parser.add_argument("--hours", type=float, default=100.0, help="time limit of this call")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--albums", type=int, default=4, help="short albums of a batch")
    parser.add_argument("--pages", type=int, default=0, help="limit of pages of a long album")
    parser.add_argument("--long", type=float, default=0.75, help="share of steps on long albums")
    parser.add_argument("--shipped", action="store_true", help="start from the package's weights")
    parser.add_argument("--start", type=Path, help="update to start from: lora.safetensors")
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    base, tokenizer = smollm2.load()
    fonts, path = training_fonts(), a.out / "lora.pt"
    words = vocabulary(tokenizer, fonts)
    eyes = [perfect(base, Reading(tokenizer, words), words)]
    if a.eye:
        eyes.append(trained(base, a.eye))
    elif a.shipped:
        eyes += 2 * [shipped(base)]
    parts = ["q_proj", "k_proj", "v_proj", "o_proj"]
    base.set_attn_implementation(CONTEXT_FIRST)
    peft = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=parts))
    learned = [p for p in peft.parameters() if p.requires_grad]
    step = torch.optim.AdamW(learned, lr=a.rate, betas=(0.9, 0.98), weight_decay=0.0)
    done = 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        done = state["step"]
        set_peft_model_state_dict(peft, state["lora"])
        step.load_state_dict(state["optimiser"])
    elif begin := a.start or (WEIGHTS / "lora.safetensors" if a.shipped else None):
        set_peft_model_state_dict(peft, read(begin))
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
            b = drawn(r, fonts, eyes, base, tokenizer, a)
            with torch.autocast("cpu", torch.bfloat16):
                loss, right = losses(peft, base, b)
            loss.backward()
            sums.append((loss.item(), right))
            nn.utils.clip_grad_norm_(learned, 1.0)
            step.step()
            step.zero_grad(set_to_none=True)
            done += 1
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


def drawn(
    r: Random,
    fonts: Fonts,
    eyes: list[See],
    base: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    a: argparse.Namespace,
) -> Sample:
    """Draw a batch: some short albums, or a single long album with as many questions."""
    alone = a.pages and r.random() < a.long
    albums = [long(r, fonts, a.pages)] if alone else [short(r, fonts) for _ in range(a.albums)]
    return batch([sample(r, *album, r.choice(eyes), base, tokenizer) for album in albums])


def read(path: Path) -> dict[str, Tensor]:
    """Read an update that ``write`` wrote, and return it under peft's names."""
    tensors = {}
    for name, value in load_file(path).items():
        where, kind = name.removesuffix(f".{name[-1]}").removesuffix(".weight"), name[-1]
        unscaled = value.float() / (ALPHA / RANK if kind == "B" else 1)
        tensors[f"base_model.model.{where}.lora_{kind}.weight"] = unscaled
    return tensors


def write(state: dict[str, Tensor], path: Path) -> None:
    """Write the update under the names of the weights that it is added to, with its scale in B."""
    tensors = {}
    for name, value in state.items():
        where = name.removeprefix("base_model.model.")
        where, kind = where.removesuffix(".weight").rsplit(".lora_", 1)
        scaled = value * (ALPHA / RANK) if kind == "B" else value
        tensors[f"{where}.weight.{kind}"] = scaled.contiguous()
    save_file(tensors, path)


if __name__ == "__main__":
    main()
