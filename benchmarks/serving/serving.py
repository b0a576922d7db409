"""vLLM on CPUs, stock and under policies: blocks in use, steps per second, shared prefixes.

    python -m benchmarks.serving.serving [--rounds 3] [--write]

Needs the environment of `make test-vllm`. A random Llama of 16 layers (8 query heads and 4 KV heads
of 64) is served in float32; its answers mean nothing, its times do. ``--write`` writes the tables
to benchmarks/results/serving.md, beside those of ``load`` and ``bounded``. Engines are measured in
turn, ``rounds`` times; figures are medians.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.output import write_part

LAYERS, HEADS, PROMPT, CONTEXT, REQUESTS, STEPS, BLOCK = 16, 4, 1024, 960, 8, 48, 32
SNAPKV = "snapkv:budget=20%,window=32"


def write_model(folder: Path) -> tuple[str, str]:
    """Write the model's configuration, and a profile whose heads differ up to about tenfold."""
    from transformers import LlamaConfig

    from foveate.profiles.profile import Profile

    LlamaConfig(
        vocab_size=4096,
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=LAYERS,
        num_attention_heads=2 * HEADS,
        num_key_value_heads=HEADS,
        head_dim=64,
        max_position_embeddings=4096,
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)
    draw = random.Random(0)
    scores = [[draw.lognormvariate(0, 1) for _ in range(HEADS)] for _ in range(LAYERS)]
    profile = Profile(
        method="headkv",
        model=folder.name,
        layers=LAYERS,
        samples=1,
        budget="",
        by_layer=scores,
    )
    return str(folder), str(profile.save(folder / "headkv.json"))


@contextlib.contextmanager
def engine(
    model: str, policy: str | None, tiers: int = 8, caching: bool = False, **options: Any
) -> Iterator[Any]:
    """Start an engine in this process; stock without a policy. ``options`` are vLLM's."""
    from vllm import LLM

    under: dict[str, Any] = (
        {}
        if policy is None
        else {
            "worker_cls": "foveate.vllm.Worker",
            "scheduler_cls": "foveate.vllm.Scheduler",
            "additional_config": {"foveate": {"policy": policy, "tiers": tiers}},
        }
    )
    settings = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "enforce_eager": True,
        "enable_prefix_caching": caching,
        "block_size": BLOCK,
        "kv_cache_memory_bytes": 2 << 30,
        "max_model_len": 2 * PROMPT,
        "max_num_seqs": REQUESTS,
        "max_num_batched_tokens": 2 * PROMPT,
        "disable_log_stats": True,
    }
    llm = LLM(model=model, **settings | under | options)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    """Return prompts of random tokens."""
    draw = random.Random(seed)
    return [[draw.randrange(3, 4000) for _ in range(length)] for _ in range(count)]


def greedy(tokens: int, **extra: Any) -> Any:
    """Return parameters for greedy sampling of ``tokens`` tokens."""
    from vllm import SamplingParams

    return SamplingParams(
        temperature=0,
        max_tokens=tokens,
        ignore_eos=True,
        detokenize=False,
        extra_args=extra or None,
    )


def decoding(llm: Any, seed: int) -> tuple[float, float]:
    """Return decoding steps per second with all requests, and the share of prompt blocks in use.

    The share is measured after the prompts, relative to the blocks that the prompts took.
    """
    front = llm.llm_engine
    scheduler = front.engine_core.engine_core.scheduler
    pool, before = scheduler.kv_cache_manager.block_pool, 0
    for name, prompt in enumerate(prompts(REQUESTS, PROMPT, seed)):
        front.add_request(f"{seed}-{name}", {"prompt_token_ids": prompt}, greedy(STEPS))
    while any(r.num_computed_tokens < PROMPT for r in scheduler.requests.values()):
        front.step()
    front.step()  # blocks of gaps are freed before this step
    groups = len(scheduler.kv_cache_config.kv_cache_groups)
    prompt_blocks = REQUESTS * groups * -(-(PROMPT + 2) // BLOCK)
    before = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
    steps, start = 0, time.perf_counter()
    while front.has_unfinished_requests():
        front.step()
        steps += 1
    return steps / (time.perf_counter() - start), before / prompt_blocks


def first_token(llm: Any, prompt: list[int], **extra: Any) -> tuple[float, int]:
    """Return seconds to the first token of a single request, and its number of shared tokens."""
    front, start = llm.llm_engine, time.perf_counter()
    front.add_request(str(start), {"prompt_token_ids": prompt}, greedy(2, **extra))
    outputs: list[Any] = []
    while not outputs:
        outputs = front.step()
    seconds = time.perf_counter() - start
    while front.has_unfinished_requests():
        front.step()
    return seconds, outputs[0].num_cached_tokens


def tiers_table(model: str, profile: str, rounds: int) -> list[str]:
    """Compare uniform budgets, tiers of layers and tiers of heads with stock vLLM."""
    heads = f"headkv:budget=20%,window=32,beta=1.2,profile={profile}"
    pyramid = "pyramidkv:budget=20%,window=32"
    cases = [
        ("stock", None, 8),
        (SNAPKV, SNAPKV, 8),
        (f"{pyramid}, 8 tiers of layers", pyramid, 8),
        ("headkv at 20 %, 8 tiers of heads", heads, 8),
        ("headkv at 20 %, 4 tiers of heads", heads, 4),
    ]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in cases}
    for seed in range(rounds):
        for name, policy, tiers in cases:
            with engine(model, policy, tiers) as llm:
                decoding(llm, 100 + seed)
                found[name].append(decoding(llm, seed))
    lines = [
        "| policy | steps a second | to uniform | blocks held after the prompts |",
        "|---|---|---|---|",
    ]
    uniform = statistics.median(speed for speed, _ in found[SNAPKV])
    for name, runs in found.items():
        speed, share = (statistics.median(column) for column in zip(*runs, strict=True))
        lines.append(f"| {name} | {speed:.1f} | {speed / uniform:.2f} | {share:.3f} |")
    return lines


def sharing_table(model: str, rounds: int) -> list[str]:
    """Measure the first token of a second question about the same context."""
    questions = prompts(2 * rounds + 2, PROMPT - CONTEXT, seed=1)
    cases = [
        ("no prefix caching", False, {}),
        ("the full prefix is shared, as far as the gap", True, {}),
        ("the context is declared, and shared compressed", True, {"foveate_context": CONTEXT}),
    ]
    lines = [
        "| | first question, s | second question, s | tokens shared |",
        "|---|---|---|---|",
    ]
    for name, caching, extra in cases:
        first, second, shared = [], [], 0
        with engine(model, SNAPKV, caching=caching) as llm:
            for question in prompts(2, PROMPT, seed=9):
                first_token(llm, question)
            for i in range(rounds):
                (fresh,) = prompts(1, CONTEXT, seed=50 + i)
                first.append(first_token(llm, fresh + questions[2 * i], **extra)[0])
                seconds, shared = first_token(llm, fresh + questions[2 * i + 1], **extra)
                second.append(seconds)
        lines.append(
            f"| {name} | {statistics.median(first):.3f} | {statistics.median(second):.3f} | "
            f"{shared} of {PROMPT} |"
        )
    return lines


def main() -> None:
    """Measure and print, and write with --write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_CI_ENV": "1"}
    with tempfile.TemporaryDirectory() as folder:
        model, profile = write_model(Path(folder))
        parts = {
            "tiers": [
                f"A random Llama of {LAYERS} layers with {HEADS} KV heads; {REQUESTS} requests of "
                f"{PROMPT} tokens and {STEPS} of answer; blocks of {BLOCK} tokens; medians of "
                f"{args.rounds} rounds. "
                "`python -m benchmarks.serving.serving --write` measures again.",
                "",
                *tiers_table(model, profile, args.rounds),
            ],
            "sharing": [
                f"A context of {CONTEXT} tokens and questions of {PROMPT - CONTEXT}, under "
                f"`{SNAPKV}`: seconds to the first token.",
                "",
                *sharing_table(model, args.rounds),
            ],
        }
    for name, lines in parts.items():
        print("\n".join(lines), end="\n\n")
        if args.write:
            write_part("serving", name, "\n".join(lines))


if __name__ == "__main__":
    main()
