"""Long answers under policies that compress while decoding: quality and bytes over time.

    python -m benchmarks.quality.long_answers [--tokens 2000] [--prompts 2] [--held 640]

SmolLM2-135M-Instruct reads pages of Python's manual, interleaved with lines about people, and is
asked to explain them. (The demo model, trained on short answers, generates only digits there.) Its
answer begins with more such lines. The rest is generated with the full cache, at a temperature
below one and without the end token. Every policy is then fed that answer, 64 tokens at a time, and
compresses after each chunk, which keeps the same pairs as feeding tokens one by one. At the end all
lines are begun again: a line is recalled if every token of its value is the most likely. Writes
benchmarks/results/long_answers.md, .json and .svg; the answer is stored under benchmarks/runs and
reused. Runs on one thread, with all prompts in one batch.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers import __version__ as transformers_version

import foveate
from benchmarks.output import RESULTS, write
from benchmarks.quality.long_answers_page import EACH, PARTS, page, plot
from benchmarks.quality.profiles_made import (
    KVZAP_OF_TEXTS,
    PROFILES,
    TRIATTENTION_OF_TEXTS,
    make_missing,
)
from foveate.defaults import READS
from foveate.hf import Session, branch, compress, record
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from foveate.hf.probe.questions import ends
from foveate.loading.model import Loaded, load
from foveate.prompts.manual import manual
from foveate_demo.scenes.words import FIELDS, OWNED, PEOPLE
from foveate_lab.eval.token_losses import answered

RUNS = Path(__file__).parents[1] / "runs" / "long_answers"
READ = 512  # tokens of a prompt
TEMPERATURE = 0.8  # this small model repeats itself at 0.7 and becomes incoherent at 1
LINES = 8  # in the prompt, and as many at the start of the answer
ASKED = "Explain the following pages of a manual at length, step by step:\n\n"
RECIPE = f"profile={PROFILES}/recommended_smollm2.safetensors"


def policies(size: int) -> tuple[str, ...]:
    """Return policies that keep ``size`` pairs per head at the end, prompt and answer together."""
    part = READ // 4
    return (
        f"streaming_llm:budget={size},when=over_budget(every={EACH})",
        f"h2o:budget={size},when=over_budget(every={EACH})",
        f"rkv:budget={size},every={EACH}",
        f"vase:budget={size},every={EACH}",
        f"triattention:budget={size},profile={TRIATTENTION_OF_TEXTS},every={EACH}",
        f"full:when=answer_budget(tokens={size - READ},every={EACH})",
        f"recommended:budget={part},{RECIPE},when=answer_budget(tokens={size - part},every={EACH})",
        f"recommended({RECIPE})+rkv(every={EACH}):budget={size}",
        f"kvzap:profile={KVZAP_OF_TEXTS},budget={size},when=over_budget(every={EACH})",
    )


class Line(NamedTuple):
    """Fact: the text before its colon, and its value, as tokens."""

    prefix: tuple[int, ...]
    value: tuple[int, ...]


class Script(NamedTuple):
    """Tokens of a row: the prompt, and the answer's opening and closing, [b, m]."""

    prompt: Tensor
    opening: Tensor
    closing: Tensor
    lines: Sequence[Line]


def lines(loaded: Loaded, count: int) -> list[Line]:
    """Draw facts about people, at most one per field of a person."""
    r = Random("long_answers")
    found: dict[str, str] = {}
    while len(found) < count:
        field = r.choice(OWNED)
        found[f"{r.choice(PEOPLE)}'s {field.lower()}:"] = FIELDS[field](r)
    return [
        Line(_tokens(loaded, f"\n{name}"), _tokens(loaded, f" {value}"))
        for name, value in found.items()
    ]


def script(loaded: Loaded, rows: int) -> Script:
    """Build equally long prompts: the manual's text fills what lines and chat template leave."""
    facts, marker = lines(loaded, 2 * LINES), "\ufffc"
    read, answer_facts = facts[:LINES], facts[LINES:]
    message = [{"role": "user", "content": f"{ASKED}{marker}"}]
    chat = loaded.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    before, after = (_tokens(loaded, part) for part in chat.split(marker))
    room = READ - len(before) - len(after) - sum(len(line.prefix + line.value) for line in read)
    prompts = []
    for number in range(rows):
        start = Random(f"long_answers/{number}").randrange(len(manual()) - READ)
        pages = _tokens(loaded, " ".join(manual()[start : start + READ]))[:room]
        prompts.append([*before, *_between(pages, read), *after])
    opening, closing = (
        torch.tensor([[token for x in part for token in x.prefix + x.value]]).expand(rows, -1)
        for part in (answer_facts, facts)
    )
    return Script(torch.tensor(prompts), opening, closing, facts)


def _between(pages: Sequence[int], facts: Sequence[Line]) -> Iterator[int]:
    """Yield the pages' tokens with the lines at equal distances."""
    size = len(pages) // len(facts)
    for index, line in enumerate(facts):
        yield from line.prefix + line.value
        yield from pages[index * size : (index + 1) * size if index < len(facts) - 1 else None]


def _tokens(loaded: Loaded, text: str) -> tuple[int, ...]:
    return tuple(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])


class Losses(NamedTuple):
    """Losses of fed tokens, [b, m], and the bytes of the cache after every ``EACH``."""

    nll: Tensor
    likeliest: Tensor
    stored_bytes: tuple[int, ...]

    def perplexity(self, first: int = 0, last: int | None = None) -> float:
        """Return the perplexity of tokens ``first`` to ``last`` (exclusive), over all rows."""
        return math.exp(float(self.nll[:, first:last].double().mean()))


def answer(loaded: Loaded, texts: Script, length: int, path: Path) -> Tensor:
    """Generate the full cache's answer, or load it."""
    if path.exists():
        stored: Tensor = torch.load(path)
        return stored
    recording = record(loaded.model, sums=False, input_ids=texts.prompt)
    with compress(loaded.model, "full") as session:
        cache = branch(session, recording)
        logits = _read(session, cache, texts.opening)[:, -1]
        stop = ends(loaded.model)
        tokens, _ = answered(session, cache, logits, length, temperature=TEMPERATURE, without=stop)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tokens, path)
    return tokens


def losses_of(loaded: Loaded, texts: Script, spec: str, tokens: Tensor) -> Losses:
    """Feed the answer under a policy, from its opening to its closing, and compute losses."""
    policy, fed = foveate.policy(spec), torch.cat([texts.opening, tokens, texts.closing], 1)
    recording = record(loaded.model, sums=policy.reads_column_sums, input_ids=texts.prompt)
    logits_parts, stored_bytes = [recording.logits[:, None]], []
    with compress(loaded.model, policy) as session:
        cache = branch(session, recording)
        for first in range(0, fed.shape[1], EACH):
            logits_parts.append(_read(session, cache, fed[:, first : first + EACH]))
            stored_bytes.append(sum(layer.nbytes for layer in foveate_layers(cache)) // len(fed))
    logits = torch.cat(logits_parts, 1)[:, :-1].float()
    nll = -logits.log_softmax(-1).gather(2, fed[..., None])[..., 0]
    return Losses(nll, logits.argmax(-1), tuple(stored_bytes))


@torch.no_grad()
def _read(session: Session, cache: DynamicCache, tokens: Tensor) -> Tensor:
    """Return the logits after each of the tokens."""
    model: Any = session.model
    logits: Tensor = model(input_ids=tokens, **{CACHE: cache}).logits
    return logits


def recalled(texts: Script, losses: Losses) -> list[int]:
    """Return for each line the number of rows in which its value is recalled."""
    likeliest = losses.likeliest[:, -texts.closing.shape[1] :]
    found, end = [], 0
    for line in texts.lines:
        first, end = end + len(line.prefix), end + len(line.prefix + line.value)
        same = likeliest[:, first:end] == texts.closing[:, first:end]
        found.append(int(same.all(-1).sum()))
    return found


def measured(spec: str, texts: Script, mine: Losses, full: Losses) -> dict[str, Any]:
    """Return one policy's figures; bytes are those of one row."""
    first, last = texts.opening.shape[1], mine.nll.shape[1] - texts.closing.shape[1]
    size, of_lines = (last - first) // PARTS, recalled(texts, mine)
    starts = [first + part * size for part in range(PARTS)]
    same = mine.likeliest[:, first:last] == full.likeliest[:, first:last]
    return {
        "policy": spec,
        "perplexity": mine.perplexity(first, last),
        "agreement": float(same.double().mean()),
        "perplexity_by_part": [mine.perplexity(start, start + size) for start in starts],
        "recalled_of_prompt": sum(of_lines[:LINES]),
        "recalled_of_answer": sum(of_lines[LINES:]),
        "bytes_at_most": max(mine.stored_bytes),
        "bytes_at_end": mine.stored_bytes[-1],
        "bytes": mine.stored_bytes,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tokens", type=int, default=2000, help="tokens of an answer")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--held", type=int, default=640, help="pairs per head at the end")
    a = parser.parse_args()
    make_missing(READS)
    torch.set_num_threads(1)
    loaded = load(READS)
    texts = script(loaded, a.prompts)
    tokens = answer(loaded, texts, a.tokens, RUNS / f"{a.prompts}x{a.tokens}.pt")
    facts = {
        "model": loaded.name,
        "tokens": a.tokens,
        "prompts": a.prompts,
        "read": READ,
        "lines": LINES,
        "held": a.held,
        "temperature": TEMPERATURE,
        "torch": torch.__version__,
        "transformers": transformers_version,
        "python": platform.python_version(),
        "answers": loaded.tokenizer.batch_decode(tokens),
    }
    full = losses_of(loaded, texts, "full", tokens)
    found = [measured("full", texts, full, full)]
    for spec in policies(a.held):
        found.append(measured(spec, texts, losses_of(loaded, texts, spec, tokens), full))
        print({**found[-1], "bytes": "..."}, flush=True)
        write("long_answers", page(found, facts), {**facts, "policies": found})
        (RESULTS / "long_answers.svg").write_text(plot(found))


if __name__ == "__main__":
    main()
