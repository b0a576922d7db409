"""A long answer under policies that compress while decoding: quality, and bytes, over time.

    python -m benchmarks.quality.long_answers [--tokens 2000] [--prompts 2] [--held 640]

SmolLM2-135M-Instruct reads some pages of Python's manual, between which lines about people stand,
and is asked to explain them. (The demo model, which was taught short answers, says nothing but
digits there.) Its answer begins with more such lines; the rest it says with the full cache, drawn
at a temperature below one, and without the token that would end it. Every policy is then told that
answer, and compresses whenever 64 tokens have come: so many are told at a time, which keeps what
telling them one by one would. At the end all lines are begun again: one is recalled if every token
of its value is the likeliest. Writes benchmarks/results/long_answers.md, .json and .svg; the answer
stays under benchmarks/runs, and is not said again. On one thread, all prompts in one batch.
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
from benchmarks.quality.long_answers_page import EACH, PARTS, page, plot
from benchmarks.quality.profiles_made import (
    KVZAP_OF_TEXTS,
    PROFILES,
    TRIATTENTION_OF_TEXTS,
    make_missing,
)
from benchmarks.written import RESULTS, write
from foveate.defaults import READS
from foveate.hf import Session, branch, compress, record
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from foveate.hf.probe.follow_up import ends
from foveate.loading.model import Loaded, load
from foveate.prompts.manual import manual
from foveate_demo.scenes.words import FIELDS, OWNED, PEOPLE
from foveate_lab.eval.over_time import answered

RUNS = Path(__file__).parents[1] / "runs" / "long_answers"
READ = 512  # tokens of a prompt
TEMPERATURE = 0.8  # so small a model repeats itself at 0.7, and loses its thread at 1
LINES = 8  # in the prompt, and as many at the answer's beginning
ASKED = "Explain the following pages of a manual at length, step by step:\n\n"
RECIPE = f"profile={PROFILES}/recommended_smollm2.safetensors"


def policies(held: int) -> tuple[str, ...]:
    """Those that hold so many pairs per head in the end, of prompt and answer together."""
    part = READ // 4
    return (
        f"streaming_llm:budget={held},when=over_budget(every={EACH})",
        f"h2o:budget={held},when=over_budget(every={EACH})",
        f"rkv:budget={held},every={EACH}",
        f"vase:budget={held},every={EACH}",
        f"triattention:budget={held},profile={TRIATTENTION_OF_TEXTS},every={EACH}",
        f"full:when=answer_budget(tokens={held - READ},every={EACH})",
        f"recommended:budget={part},{RECIPE},when=answer_budget(tokens={held - part},every={EACH})",
        f"recommended({RECIPE})+rkv(every={EACH}):budget={held}",
        f"kvzap:profile={KVZAP_OF_TEXTS},budget={held},when=over_budget(every={EACH})",
    )


class Line(NamedTuple):
    """A fact: what stands before its colon, and its value, as tokens."""

    begun: tuple[int, ...]
    value: tuple[int, ...]


class Script(NamedTuple):
    """What a row reads and is told: the prompt, and the answer's beginning, rest and end [b, m]."""

    prompt: Tensor
    opening: Tensor
    closing: Tensor
    lines: Sequence[Line]


def lines(loaded: Loaded, count: int) -> list[Line]:
    """Facts about people, no two of the same field of a person."""
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
    """Equally long prompts: the manual's words are cut to what the lines and the chat leave."""
    facts, place = lines(loaded, 2 * LINES), "\ufffc"
    read, said = facts[:LINES], facts[LINES:]
    message = [{"role": "user", "content": f"{ASKED}{place}"}]
    worded = loaded.tokenizer.apply_chat_template(
        message, tokenize=False, add_generation_prompt=True
    )
    before, after = (_tokens(loaded, part) for part in worded.split(place))
    room = READ - len(before) - len(after) - sum(len(x.begun + x.value) for x in read)
    prompts = []
    for number in range(rows):
        start = Random(f"long_answers/{number}").randrange(len(manual()) - READ)
        pages = _tokens(loaded, " ".join(manual()[start : start + READ]))[:room]
        prompts.append([*before, *_between(pages, read), *after])
    opening, closing = (
        torch.tensor([[token for one in some for token in one.begun + one.value]]).expand(rows, -1)
        for some in (said, facts)
    )
    return Script(torch.tensor(prompts), opening, closing, facts)


def _between(pages: Sequence[int], facts: Sequence[Line]) -> Iterator[int]:
    """The lines at equal distances among the pages' tokens."""
    size = len(pages) // len(facts)
    for place, one in enumerate(facts):
        yield from one.begun + one.value
        yield from pages[place * size : (place + 1) * size if place < len(facts) - 1 else None]


def _tokens(loaded: Loaded, text: str) -> tuple[int, ...]:
    return tuple(loaded.tokenizer(text, add_special_tokens=False)["input_ids"])


class Thought(NamedTuple):
    """What a cache thinks of the tokens it is told, [b, m], and bytes after every ``EACH``."""

    nll: Tensor
    likeliest: Tensor
    held: tuple[int, ...]

    def perplexity(self, first: int = 0, last: int | None = None) -> float:
        """Of the tokens from ``first`` to before ``last``, over all rows."""
        return math.exp(float(self.nll[:, first:last].double().mean()))


def answer(loaded: Loaded, given: Script, length: int, path: Path) -> Tensor:
    """The full cache's own, which is said once."""
    if path.exists():
        held: Tensor = torch.load(path)
        return held
    recording = record(loaded.model, sums=False, input_ids=given.prompt)
    with compress(loaded.model, "full") as session:
        cache = branch(session, recording)
        logits = _read(session, cache, given.opening)[:, -1]
        stop = ends(loaded.model)
        tokens, _ = answered(session, cache, logits, length, temperature=TEMPERATURE, without=stop)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(tokens, path)
    return tokens


def heard(loaded: Loaded, given: Script, spec: str, tokens: Tensor) -> Thought:
    """What a policy thinks of the answer, from its opening to its closing."""
    policy, whole = foveate.policy(spec), torch.cat([given.opening, tokens, given.closing], 1)
    recording = record(loaded.model, sums=policy.reads_column_sums, input_ids=given.prompt)
    thought, held = [recording.logits[:, None]], []
    with compress(loaded.model, policy) as session:
        cache = branch(session, recording)
        for first in range(0, whole.shape[1], EACH):
            thought.append(_read(session, cache, whole[:, first : first + EACH]))
            held.append(sum(layer.nbytes for layer in foveate_layers(cache)) // len(whole))
    logits = torch.cat(thought, 1)[:, :-1].float()
    nll = -logits.log_softmax(-1).gather(2, whole[..., None])[..., 0]
    return Thought(nll, logits.argmax(-1), tuple(held))


@torch.no_grad()
def _read(session: Session, cache: DynamicCache, tokens: Tensor) -> Tensor:
    """The logits behind each of the tokens."""
    model: Any = session.model
    logits: Tensor = model(input_ids=tokens, **{CACHE: cache}).logits
    return logits


def recalled(given: Script, thought: Thought) -> list[int]:
    """Of each line, in how many rows each token of its value is the likeliest."""
    likeliest = thought.likeliest[:, -given.closing.shape[1] :]
    found, end = [], 0
    for one in given.lines:
        first, end = end + len(one.begun), end + len(one.begun + one.value)
        same = likeliest[:, first:end] == given.closing[:, first:end]
        found.append(int(same.all(-1).sum()))
    return found


def measured(spec: str, given: Script, mine: Thought, full: Thought) -> dict[str, Any]:
    """One policy's numbers; bytes are those of one row."""
    first, last = given.opening.shape[1], mine.nll.shape[1] - given.closing.shape[1]
    size, of_lines = (last - first) // PARTS, recalled(given, mine)
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
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--tokens", type=int, default=2000, help="of an answer")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--held", type=int, default=640, help="pairs of a head in the end")
    a = parser.parse_args()
    make_missing(READS)
    torch.set_num_threads(1)
    loaded = load(READS)
    given = script(loaded, a.prompts)
    tokens = answer(loaded, given, a.tokens, RUNS / f"{a.prompts}x{a.tokens}.pt")
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
    full = heard(loaded, given, "full", tokens)
    found = [measured("full", given, full, full)]
    for spec in policies(a.held):
        found.append(measured(spec, given, heard(loaded, given, spec, tokens), full))
        print({**found[-1], "bytes": "..."}, flush=True)
        write("long_answers", page(found, facts), {**facts, "policies": found})
        (RESULTS / "long_answers.svg").write_text(plot(found))


if __name__ == "__main__":
    main()
