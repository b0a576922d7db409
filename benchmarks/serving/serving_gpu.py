"""vLLM on one GPU, stock and under a policy, with the same pool of blocks: tokens per second.

    python -m benchmarks.serving.serving_gpu [--model MODEL] [--backend FLASH_ATTN] [--policy SPEC]

Without a model, a random Llama of 1.2 billion parameters is served; then only the times are
meaningful. Every run is a process of its own, first with CUDA graphs and then without. Prints a
Markdown table. tests/serving/test_on_gpu.py checks the answers.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from typing import Any

ME = "benchmarks.serving.serving_gpu"  # this module, as a process of its own


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--backend", default="FLASH_ATTN", choices=("FLASH_ATTN", "TRITON_ATTN"))
    parser.add_argument("--policy", default="snapkv:budget=20%,window=32")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of each prompt")
    parser.add_argument("--answer", type=int, default=256, help="tokens of each answer")
    parser.add_argument("--blocks", type=int, default=4096, help="blocks of 16 tokens in each pool")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # one case, measured in this process
    return parser.parse_args(arguments)


def random_llama(folder: str) -> str:
    """Write a model's configuration and return its folder; vLLM creates the weights."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=32768,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )
    config.save_pretrained(folder)
    return folder


def engine(args: argparse.Namespace, policy: str | None, eager: bool, model: str) -> Any:
    """Start a vLLM engine in this process; stock without a policy."""
    from vllm import LLM

    under: dict[str, Any] = (
        {}
        if policy is None
        else {
            "worker_cls": "foveate.vllm.Worker",
            "scheduler_cls": "foveate.vllm.Scheduler",
            "additional_config": {"foveate": {"policy": policy}},
        }
    )
    return LLM(
        model=model,
        load_format="auto" if args.model else "dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        attention_backend=args.backend,
        enforce_eager=eager,
        enable_prefix_caching=False,
        block_size=16,
        num_gpu_blocks_override=args.blocks,
        max_model_len=args.prompt + args.answer,
        max_num_seqs=args.requests,
        gpu_memory_utilization=0.8,
        **under,
    )


def measured(args: argparse.Namespace, policy: str | None, eager: bool) -> dict[str, Any]:
    """Measure one engine on all requests, after a shorter warm-up."""
    from vllm import SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        llm = engine(args, policy, eager, args.model or random_llama(folder))
        draw = random.Random(0)
        prompts = [
            {"prompt_token_ids": [draw.randrange(3, 30000) for _ in range(args.prompt)]}
            for _ in range(args.requests)
        ]
        sampling = SamplingParams(
            temperature=0, max_tokens=args.answer, ignore_eos=True, detokenize=False
        )
        llm.generate(prompts[:2], sampling, use_tqdm=False)
        core, running = llm.llm_engine.engine_core.engine_core, 0
        start = time.perf_counter()
        for name, prompt in enumerate(prompts):
            llm.llm_engine.add_request(str(name), prompt, sampling)
        while llm.llm_engine.has_unfinished_requests():
            llm.llm_engine.step()
            running = max(running, len(core.scheduler.running))
        seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "running": running,
        "tokens": args.requests * args.answer / seconds,
    }


def main() -> int:
    """Measure stock vLLM and the policy, each with graphs and without."""
    import torch

    args = options()
    if not torch.cuda.is_available():
        print("skipped: this measures vLLM on a CUDA GPU, and PyTorch finds none here.")
        return 0
    if args.one:
        policy, eager = json.loads(args.one)
        print(json.dumps(measured(args, policy, eager)))
        return 0
    fixed = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # all else is vLLM's default
    print("| graphs | policy | requests at once | seconds | tokens of answers a second |")
    print("|---|---|---|---|---|")
    for eager in (False, True):
        for policy in (None, args.policy):
            command = [
                sys.executable,
                "-m",
                ME,
                *sys.argv[1:],
                "--one",
                json.dumps([policy, eager]),
            ]
            run = subprocess.run(
                command, env=os.environ | fixed, stdout=subprocess.PIPE, text=True, check=True
            )
            result = json.loads(run.stdout.splitlines()[-1])
            print(
                f"| {'off' if eager else 'on'} | {policy or 'stock'} | {result['running']} | "
                f"{result['seconds']:.1f} | {result['tokens']:.0f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
