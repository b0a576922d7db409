"""What the transformers backend answers to the prompts that vLLM was given."""

from typing import NamedTuple

import torch
from transformers import DynamicCache

import foveate
from foveate.backends.hf.internals import CACHE
from foveate.backends.hf.modality import visual_tokens
from foveate.backends.vllm.tiers import rooms_of

NOISE = 1e-3  # of log-probabilities, between vLLM's kernels and those of transformers


class Expected(NamedTuple):
    prompt: list[int]
    vision: torch.Tensor  # [n]
    positions: list[torch.Tensor]  # [h, k] each
    tokens: list[int]
    logprobs: torch.Tensor  # [tokens, vocabulary]


@torch.no_grad()
def answer(model, inputs, policy, tokens, block=32):
    """The greedy answer to one prompt, with the budget that whole blocks leave of it."""
    policy = foveate.policy(policy)
    length = inputs["input_ids"].shape[1]
    ((room,),) = rooms_of([policy], 1, 1, longest=length)
    kept, cache = room.kept(length, block), DynamicCache()
    model.generation_config.eos_token_id = None  # answers go on, as vLLM's with ignore_eos
    with foveate.compress(model, policy.but(budget=kept)):
        out = model.generate(
            **inputs,
            **{CACHE: cache},
            max_new_tokens=tokens,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
        )
    return Expected(
        prompt=inputs["input_ids"][0].tolist(),
        vision=visual_tokens(model.config, inputs["input_ids"])[0],
        positions=[layer.pairs.columns[0][:, :kept] for layer in cache.layers],
        tokens=out.sequences[0, length:].tolist(),
        logprobs=torch.stack([row[0].log_softmax(-1) for row in out.logits]),
    )


def check(served, all_expected):
    """Every prompt, visual token, kept position, answered token and log-probability."""
    for name, (given, wanted) in enumerate(zip(served.answers, all_expected, strict=True)):
        assert given.prompt == wanted.prompt
        assert torch.equal(served.vision[name], wanted.vision)
        for place, positions in enumerate(wanted.positions):
            assert torch.equal(served.kept[name, place], positions), (name, place)
        assert given.tokens == wanted.tokens
        logprobs, likely = wanted.logprobs, given.logprobs
        if likely.shape != logprobs.shape:  # of the likeliest tokens, in their order
            logprobs = logprobs.topk(likely.shape[1], dim=-1).values
        torch.testing.assert_close(logprobs, likely, rtol=0, atol=NOISE)
