"""What the transformers backend answers to the prompts that vLLM was given."""

from typing import NamedTuple

import torch
from transformers import DynamicCache

import foveate
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from foveate.hf.model.modality import visual_tokens
from foveate.vllm.plans.tiers import by_head, rooms_of
from tests.answers import certain
from tests.jitter import other_side
from tests.serving.reference import LEAD, NOISE, counted, counted_by_head


class Expected(NamedTuple):
    prompt: list[int]
    vision: torch.Tensor  # [n]
    positions: list[list[torch.Tensor]]  # of each layer, by KV head
    tokens: list[int]
    logprobs: torch.Tensor  # [tokens, vocabulary]


def under_blocks(policy, config, length, longest, block):
    """The policy with the counts that whole blocks, and tiers, leave of a prompt."""
    depth, heads = config.num_hidden_layers, config.num_key_value_heads
    rooms = [room for (room,) in rooms_of([policy], depth, heads, longest)]
    if by_head([policy]):
        return counted_by_head(policy, rooms, length, heads, block)[1]
    return counted(policy, rooms, length, block)[1]


@torch.no_grad()
def answer(model, inputs, policy, tokens, block=32, longest=1024):
    """The greedy answer to one prompt, with the budget that whole blocks leave of it."""
    length, text = inputs["input_ids"].shape[1], model.config.get_text_config()
    cache = DynamicCache(config=text)
    policy = under_blocks(foveate.policy(policy), text, length, longest, block)
    model.generation_config.eos_token_id = None  # answers go on, as vLLM's with ignore_eos
    with foveate.compress(model, policy), other_side():
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
        positions=[by_heads(layer.pairs.columns[0], length) for layer in foveate_layers(cache)],
        tokens=out.sequences[0, length:].tolist(),
        logprobs=torch.stack([row[0].log_softmax(-1) for row in out.logits]),
    )


def by_heads(columns, length):
    """Of each KV head, the positions of the prompt that it holds."""
    return [one[(one >= 0) & (one < length)] for one in columns]


def check(served, all_expected):
    """Every prompt, visual token, kept position, and, as far as the answer is certain, its tokens
    and their log-probabilities.
    """
    for name, (given, wanted) in enumerate(zip(served.answers, all_expected, strict=True)):
        assert given.prompt == wanted.prompt
        assert torch.equal(served.vision[name], wanted.vision)
        for place, positions in enumerate(wanted.positions):
            if (name, place) not in served.kept:  # it stays whole
                assert all(len(head) == len(wanted.prompt) for head in positions)
                continue
            for mine, head in zip(served.kept[name, place], positions, strict=True):
                assert torch.equal(mine, head), (name, place)
        sure = certain(wanted.logprobs, LEAD)  # then either may go on in another way
        assert given.tokens[:sure] == wanted.tokens[:sure]
        assert len(given.tokens) == len(wanted.tokens)
        logprobs, likely = wanted.logprobs[: sure + 1], given.logprobs[: sure + 1]
        if likely.shape != logprobs.shape:  # of the likeliest tokens, in their order
            logprobs = logprobs.topk(likely.shape[1], dim=-1).values
        torch.testing.assert_close(logprobs, likely, rtol=0, atol=NOISE)
