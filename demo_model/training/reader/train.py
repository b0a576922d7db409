"""Training of the reader: its projector, and a low-rank update of the language model's attention.

    python -m training.reader.train --out RUN --hours 1 [--fonts DIR]

Starts from the weights in the package, if there are any, else from the encoder's head: a column is
the mean of its characters' embeddings. The same command continues an earlier run, with its
optimiser. Every page is drawn, looked at once, and asked about several times; several questions
about a page are asked at once, each as if it stood alone. The rate falls to zero at the end of
``--hours``. Pages are shown in all columns or in the short form, whichever ``--limit`` allows; the
share ``--several`` of the steps has two to four pages in the short form.
``--export`` writes the package's weights at the end.
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
from transformers import PreTrainedTokenizerBase

from foveate_demo import smollm2
from foveate_reader.eye import ROW_END, SPACE, WEIGHTS, load_eye
from foveate_reader.model import Projector
from foveate_reader.networks import READABLE, Encoder
from training.albums import Sample, batch
from training.attention import CONTEXT_FIRST
from training.fonts import fonts_in, training_fonts
from training.lora import ALPHA, RANK, losses, read, write
from training.reader.pages import Page, page, together
from training.train import save

FILES = ("projector.safetensors", "lora.safetensors")
FRESH = 0.25  # chance of a new page before a step, and of another
FIRST, POOL = 20, 400  # pages that are drawn before the first step, and that are kept
WARMUP = 20  # steps


def start(projector: Projector, encoder: Encoder, table: Tensor, ids: dict[str, int]) -> None:
    """Set the projector so that it reads as the encoder's head does.

    ``table`` are the language model's embeddings, ``ids`` the tokens of characters. Columns without
    a character get the mean embedding; the other branch and positions begin at zero.
    """
    with torch.no_grad():
        projector.read.load_state_dict(encoder.head.state_dict())
        blank = table.mean(0, keepdim=True)
        projector.characters.weight.copy_(torch.cat([blank, table[[ids[c] for c in READABLE]]]).T)
        for part in (projector.down, projector.kind, projector.across, projector.line):
            for parameter in part.parameters():
                parameter.zero_()
        projector.kind.weight[SPACE] = table[ids[" "]]
        projector.kind.weight[ROW_END] = table[ids["\n"]]


def characters(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Return the token of every readable character, and of a line break."""
    found = {}
    for character in f"{READABLE}\n":
        (found[character],) = tokenizer(character)["input_ids"]
    return found


def sample(
    seen: Tensor,
    questions: list[tuple[str, str]],
    table: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    ids: dict[str, int],
) -> Sample:
    """Append questions to the embeddings of a page, each as if it were the only one."""
    parts, positions = [seen], [torch.arange(len(seen))]
    labels = [torch.full((len(seen),), -100)]
    owner = [torch.zeros(len(seen), dtype=torch.long)]
    for i, (question, answer) in enumerate(questions, 1):
        asked = tokenizer(f"\nQuestion: {question}\nAnswer:")["input_ids"]
        answered = [*(ids[character] for character in answer), tokenizer.eos_token_id]
        parts.append(table(torch.tensor(asked + answered)))
        positions.append(len(seen) + torch.arange(len(asked) + len(answered)))
        labels.append(torch.tensor([-100] * len(asked) + answered))
        owner.append(torch.full((len(asked) + len(answered),), i))
    of = torch.cat(owner)
    mask = ((of[:, None] == of[None]) | (of[None] == 0)).tril()
    return Sample(torch.cat(parts), torch.cat(positions), mask, torch.cat(labels), len(seen))


def prompt(
    r: Random, pool: list[Page], limit: int, columns: float, several: float
) -> tuple[list[Tensor], list[tuple[str, str]]]:
    """Draw a page or several of the pool, in at most ``limit`` visual tokens, and its questions."""
    if r.random() < several:
        chosen = r.sample(pool, min(r.randint(2, 4), len(pool)))
        while sum(len(page.short) for page in chosen) > limit:
            chosen.pop()
        if len(chosen) > 1:
            return [page.short for page in chosen], together(chosen)
    drawn = r.choice(pool[-60:] if r.random() < 0.5 else pool)
    forms = [form for form in (drawn.columns, drawn.short) if len(form) <= limit]
    return forms[:1] if r.random() < columns else forms[-1:], drawn.questions


def main() -> None:
    """Train until the time is over, and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--hours", type=float, default=1.0, help="time of this call")
    parser.add_argument("--rate", type=float, default=6e-4)
    parser.add_argument("--decay", type=float, default=0.3, help="last share of time, with decay")
    parser.add_argument("--limit", type=int, default=1000, help="visual tokens of a page")
    parser.add_argument("--columns", type=float, default=0.0, help="share of steps on all columns")
    parser.add_argument("--lines", type=int, default=70, help="lines of a page, about")
    parser.add_argument("--questions", type=int, default=13, help="questions asked at once")
    parser.add_argument(
        "--several", type=float, default=0.15, help="share of steps on two to four pages"
    )
    parser.add_argument("--fonts", type=Path, help="folder with more fonts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--export", action="store_true", help="write the package's weights at the end"
    )
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(a.seed)
    torch.set_num_threads(1)
    fonts = (*training_fonts(), *(fonts_in(a.fonts) if a.fonts else ()))
    base, tokenizer = smollm2.load()
    eye, ids = load_eye(), characters(tokenizer)
    projector = Projector(base.config.hidden_size)
    base.set_attn_implementation(CONTEXT_FIRST)
    parts = ["q_proj", "k_proj", "v_proj", "o_proj"]
    peft = get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=parts))
    update = [p for p in peft.parameters() if p.requires_grad]
    groups = [{"params": update, "part": 1.0}, {"params": [*projector.parameters()], "part": 0.5}]
    optimiser = torch.optim.AdamW(groups, lr=a.rate, betas=(0.9, 0.98), weight_decay=0.0)
    done, path = 0, a.out / "state.pt"
    if path.exists():
        state = torch.load(path, weights_only=True)
        done = state["step"]
        set_peft_model_state_dict(peft, state["lora"])
        projector.load_state_dict(state["projector"])
        optimiser.load_state_dict(state["optimiser"])
    elif all((WEIGHTS / name).exists() for name in FILES):
        kept = load_file(WEIGHTS / "projector.safetensors")
        projector.load_state_dict({key: value.float() for key, value in kept.items()})
        set_peft_model_state_dict(peft, read(WEIGHTS / "lora.safetensors"))
    else:
        start(projector, eye.encoder, base.get_input_embeddings().weight.detach(), ids)
    print(f"{len(fonts)} fonts; {sum(p.numel() for p in update):,} parameters", flush=True)

    def keep() -> None:
        lora = get_peft_model_state_dict(peft)
        weights = {key: value.detach() for key, value in projector.state_dict().items()}
        save(path, {"step": done, "lora": lora, "projector": weights,
                    "optimiser": optimiser.state_dict()})  # fmt: skip
        for folder in (a.out, *([WEIGHTS] if a.export and time.time() > end else ())):
            halves = {key: value.half().contiguous() for key, value in weights.items()}
            save_file(halves, folder / FILES[0])
            write({key: value.half() for key, value in lora.items()}, folder / FILES[1])

    r = Random(f"{a.seed}/{done}")
    pool: list[Page] = []
    begin = saved = time.time()
    end, first, sums = begin + 3600 * a.hours, done, []
    with (a.out / "log.jsonl").open("a") as log:
        while time.time() < end:
            left = (end - time.time()) / (3600 * a.hours * a.decay)
            rate = a.rate * min(1.0, left, (done - first + 1) / WARMUP)
            for group in optimiser.param_groups:
                group["lr"] = rate * group["part"]
            while len(pool) < FIRST or r.random() < FRESH:
                pool = [*pool[-POOL:], page(r, eye, fonts, r.randint(5, a.lines))]
            shown, asked = prompt(r, pool, a.limit, a.columns, a.several)
            questions = r.sample(asked, min(a.questions, len(asked)))
            if not shown or not questions:
                continue
            seen = torch.cat([projector(form.float()) for form in shown])
            table = base.get_input_embeddings()
            loss, right = losses(
                peft, base, batch([sample(seen, questions, table, tokenizer, ids)])
            )
            loss.backward()
            nn.utils.clip_grad_norm_([*update, *projector.parameters()], 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            done += 1
            sums.append((loss.item(), right, len(seen)))
            if done % 10 == 0:
                mean = [round(sum(x) / len(sums), 4) for x in zip(*sums, strict=True)]
                line = {"step": done, "loss": mean[0], "right": mean[1], "tokens": mean[2],
                        "rate": rate, "pages": len(pool), "seconds": round(time.time() - begin, 1),
                        "cpu": round(time.process_time(), 1)}  # fmt: skip
                print(json.dumps(line), file=log, flush=True)
                sums = []
            if time.time() - saved > 240:
                saved = time.time()
                keep()
    keep()


if __name__ == "__main__":
    main()
