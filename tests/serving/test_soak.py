"""Hundreds of requests in one engine: images, policies of their own, shared contexts, aborts and
preemptions at random. Every answer is that of the transformers backend, and no block is lost.
"""

import random
import warnings
from functools import cache
from typing import NamedTuple

import pytest
from transformers import AutoModelForImageTextToText, AutoProcessor

import foveate
from foveate.vllm.plans.gap import Room
from tests.answers import certain as sure_tokens
from tests.serving import tiny
from tests.serving.engine import Traffic, alike, engine, greedy, known_to, serve
from tests.serving.following import budgets_of, in_blocks
from tests.serving.reference import NOISE, certain
from tests.serving.test_images import noise

DEFAULT, OTHERS = "mixkv:budget=30%,window=8", ("snapkv:budget=40%,window=8", "h2o:budget=50%")
WIDE, NARROW = (  # these compress again: of more tokens than come between boundaries, and of fewer
    "snapkv:budget=96,window=8,when=over_budget(every=32,reading=true)",
    "mixkv:budget=40,window=8,when=over_budget(every=64,reading=true)",
)
CHOICES = (
    {},
    {"foveate_policy": WIDE},
    {"foveate_policy": NARROW},
    {"foveate_policy": "full"},
    {"foveate_policy": OTHERS[0]},
    {"foveate_policy": OTHERS[1]},
    {"foveate_budget": "60%"},
    {"foveate_context": 96},
    {"foveate_context": 64, "foveate_policy": OTHERS[0], "foveate_budget": 20},
)
PROMPTS, ANSWER, POOL, BLOCK = 20, 40, 22, 32
CERTAIN = 5 * NOISE  # of logits


class Other(NamedTuple):
    """An answer that is not that of transformers, and what it was given from."""

    pair: tuple[int, int]
    tokens: list[int]
    kept: dict  # place -> positions [h, k]


@pytest.fixture(scope="module")
def asked(tiny_folder):
    """Prompts as vLLM takes them, and by a prompt's and a choice's number the answer to expect;
    None where two tokens are too near to each other.
    """
    draw, folder = random.Random(2), tiny_folder("qwen2_vl")
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    processor = AutoProcessor.from_pretrained(folder)
    given = []
    for seed in range(PROMPTS):
        shown = [
            noise(10 * seed + i, 28 * draw.randint(2, 9), 28 * draw.randint(2, 6))
            for i in range(draw.choice([0, 1, 1, 2]))
        ]
        letters = "".join(draw.choices("abcdefgh ", k=draw.randint(4, 120)))
        # some begin alike: what lies in the pool of one serves the others
        said = tiny.QWEN_IMAGE * len(shown) + ("see this, and that, too: " * 4 + letters)
        chat = f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
        given.append({"prompt": chat} | ({"multi_modal_data": {"image": shown}} if shown else {}))

    @cache
    def answer(prompt, choice):
        one = given[prompt]
        pictures = one.get("multi_modal_data", {}).get("image")
        inputs = processor(text=[one["prompt"]], images=pictures, return_tensors="pt")
        length = inputs["input_ids"].shape[1]
        if CHOICES[choice].get("foveate_policy") in (WIDE, NARROW):
            policy = foveate.policy(CHOICES[choice]["foveate_policy"])
            policy, boundaries = in_blocks(policy, length, BLOCK)
            ends = boundaries.boundaries_within(length)[::-1]
            with budgets_of(boundaries):
                return certain(model, inputs, policy, ANSWER, CERTAIN, boundaries=ends)
        policy, context = planned(CHOICES[choice], length)
        return certain(model, inputs, policy, ANSWER, CERTAIN, context)

    return given, answer


def planned(choice, length):
    """A policy with the count that whole blocks leave, and up to where it compresses."""
    name = choice.get("foveate_policy", DEFAULT)
    policy, context = foveate.policy(name), choice.get("foveate_context")
    if name == "full":
        return policy, None
    if "foveate_budget" in choice:
        policy = policy.but(budget=choice["foveate_budget"])
    room = Room.of(policy.amount, policy.select.protects)
    end = context // BLOCK * BLOCK if context else length
    return policy.but(budget=room.kept(end, BLOCK)), context and end


def kept_of(llm, name):
    """By place, the positions [h, k] that a request keeps which has just ended."""
    known = known_to(llm).get(name)
    return {} if known is None else {place: alike(one) for place, one in known.kept.items()}


def apart(ours, theirs):
    """By place and KV head, the positions that one of two keeps alone."""
    return {
        (place, head): sorted(set(mine.tolist()) ^ set(other.tolist()))
        for place in ours.keys() & theirs.keys()
        for head, (mine, other) in enumerate(zip(ours[place], theirs[place], strict=True))
        if mine.tolist() != other.tolist()
    }


@pytest.mark.parametrize("requests", [60, pytest.param(300, marks=pytest.mark.slow)])
def test_every_answer_is_right_and_no_block_is_lost(tiny_folder, asked, requests):
    given, answer = asked
    draw, options = random.Random(3), {"skip_tokenizer_init": False, "enable_prefix_caching": True}
    with engine(
        tiny_folder("qwen2_vl"),
        DEFAULT,
        policies=(*OTHERS, WIDE, NARROW),
        limit_mm_per_prompt={"image": 2, "video": 0},
        num_gpu_blocks_override=POOL,
        max_model_len=512,
        max_num_batched_tokens=90,
        **options,
    ) as llm:
        core = llm.llm_engine.engine_core.engine_core
        pool = core.scheduler.kv_cache_manager.block_pool
        traffic = Traffic(llm, draw, requests, most=16, burst=2, leaving=0.06)
        wanted, others, shared = {}, {}, 0
        checked = answers = 0

        def ask(name):
            pair = draw.randrange(PROMPTS), draw.randrange(len(CHOICES))
            wanted[name] = pair, draw.choice([1, 3, ANSWER])
            return given[pair[0]], greedy(wanted[name][1], CHOICES[pair[1]])

        for outputs in traffic.steps(ask):
            for output in (one for one in outputs if one.finished):
                pair, tokens = wanted[output.request_id]
                right = answer(*pair)
                got = list(output.outputs[0].token_ids)
                assert len(got) == tokens
                if got[: len(right)] != right[:tokens]:
                    others[output.request_id] = Other(pair, got, kept_of(llm, output.request_id))
                checked, answers = checked + min(tokens, len(right)), answers + 1
                shared += output.num_cached_tokens > 0
        assert pool.get_num_free_blocks() == POOL - 1
        assert not core.scheduler.plans
        # another CPU's kernels may answer otherwise than transformers; then they do so alone, too
        for name, other in others.items():
            llm.llm_engine.reset_prefix_cache()
            prompt, choice = other.pair
            tokens = len(other.tokens)
            (alone,) = serve(llm, [given[prompt]], tokens, asked=[CHOICES[choice]]).answers
            sure = sure_tokens(alone.logprobs, CERTAIN)
            assert other.tokens[:sure] == alone.tokens[:sure], (
                f"request {name} ({prompt}, {choice}) answers {other.tokens}; alone {alone.tokens},"
                f" of which {sure} are sure; transformers {answer(*other.pair)}; what is kept "
                f"differs from alone at {apart(other.kept, alone.kept)}"
            )
            warnings.warn(
                f"request {name} {other.pair} answers as alone, not as by transformers",
                stacklevel=1,
            )
    # each of them was given alone as well, in the same engine
    assert len(others) <= answers / 10, others
    assert traffic.cancelled > requests / 30
    assert len(traffic.preempted) > requests / 60
    assert shared > requests / 10
    assert checked > 3 * requests
