"""What an engineer asks next: several answers, adapters, structured output, drafts, engines."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

import foveate
from foveate.vllm.plans.gap import Room
from tests.serving.engine import (
    Answer,
    by_token,
    check_alike,
    engine,
    greedy,
    prompts,
    serve,
)
from tests.serving.reference import LEAD, NOISE, by_transformers
from tests.serving.server import server
from tests.serving.test_images import chat
from tests.serving.test_requests import check

POLICY = "snapkv:budget=25%,window=8"
LENGTHS = (300, 135)


def kept(length):
    """What the policy keeps of a prompt."""
    policy = foveate.policy(POLICY)
    return Room.of(policy.amount, policy.select.protects).kept(length, 32)


def finished(llm):
    """Every request's output, once all are done."""
    found = {}
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            if output.finished:
                found[output.request_id] = output
    return found


@pytest.mark.parametrize("caching", [False, True])
def test_several_answers_to_one_prompt_are_each_the_right_one(llama, model, caching):
    """Several answers, `n` > 1 | work | each compresses its prompt; the beginning is shared"""
    from vllm.sampling_params import RequestOutputKind

    (prompt,) = prompts([300])
    with engine(llama, POLICY, enable_prefix_caching=caching) as llm:
        alone = serve(llm, [prompt], 8)
        drawn = greedy(
            8, n=3, temperature=2.0, logprobs=-1, output_kind=RequestOutputKind.FINAL_ONLY
        )
        llm.llm_engine.add_request("0", {"prompt_token_ids": prompt}, drawn)
        found = finished(llm)["0"].outputs
    check(model, alone, [POLICY])
    assert len({tuple(one.token_ids) for one in found}) == 3
    policy = foveate.policy(POLICY).but(budget=kept(len(prompt)))
    for one in found:  # what was drawn is fed to transformers
        answer = Answer(prompt, list(one.token_ids), None)
        _, _, logprobs = by_transformers(model, policy, answer)
        rows = torch.tensor([by_token(row) for row in one.logprobs])
        torch.testing.assert_close(rows, logprobs, rtol=0, atol=NOISE)


def adapter(folder, rank=4):
    """A random LoRA adapter of the query projections, and what it adds to their weights."""
    draw, weights, added = torch.Generator().manual_seed(0), {}, {}
    for layer in range(4):
        name = f"model.layers.{layer}.self_attn.q_proj"
        a, b = torch.randn(rank, 128, generator=draw), torch.randn(128, rank, generator=draw) * 0.1
        weights[f"base_model.model.{name}.lora_A.weight"] = a
        weights[f"base_model.model.{name}.lora_B.weight"] = b
        added[f"{name}.weight"] = b @ a  # alpha is the rank
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"bias": "none"}))
    return added


def test_adapters_are_compressed_as_the_merged_model(llama, model, tmp_path):
    """LoRA adapters | work | on CPUs `--max-loras` has to be one above the adapters served: vLLM's
    build gives the last slot's to requests without one
    """
    from vllm.lora.request import LoRARequest

    added, given = adapter(tmp_path), prompts(LENGTHS)
    with engine(llama, POLICY, enable_lora=True, max_lora_rank=8, max_loras=2) as llm:
        for name, prompt in enumerate(given):
            with_it = LoRARequest("mine", 1, str(tmp_path)) if name == 0 else None
            asked = {"prompt_token_ids": prompt}, greedy(8, logprobs=-1)
            llm.llm_engine.add_request(str(name), *asked, lora_request=with_it)
        found = finished(llm)
    merged = AutoModelForCausalLM.from_pretrained(llama).eval()
    weights = merged.state_dict()
    merged.load_state_dict(weights | {name: weights[name] + more for name, more in added.items()})
    for name, one in (("1", model), ("0", merged)):
        check(one, served_alone(found[name]), [POLICY])


def served_alone(output):
    """One finished request, as ``check`` looks at several."""
    from tests.serving.engine import Answer, Served

    (answer,) = output.outputs
    rows = torch.tensor([by_token(row) for row in answer.logprobs])
    one = Answer(list(output.prompt_token_ids), list(answer.token_ids), rows)
    return Served([one], [], [], {}, {}, 0, 0, [])


def test_structured_output_is_the_likeliest_that_is_allowed(tiny_folder):
    """Structured output | works | each token is the likeliest that the grammar allows"""
    from vllm.sampling_params import StructuredOutputsParams

    folder, letters, digits = tiny_folder("qwen2_vl"), "abcdef", "0123456789"
    given = {"prompt": chat("", 0) + "x" * 200}
    none = {"image": 0, "video": 0}
    with engine(folder, POLICY, skip_tokenizer_init=False, limit_mm_per_prompt=none) as llm:
        expression = StructuredOutputsParams(regex=f"[{letters}]{{6}}-[{digits}]{{6}}")
        asked = greedy(20, ignore_eos=False, detokenize=True, structured_outputs=expression)
        llm.llm_engine.add_request("0", given, asked)
        found = finished(llm)["0"]
        pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == 63
        tokenizer = llm.get_tokenizer()
    (answer,) = found.outputs
    assert re.fullmatch("[a-f]{6}-[0-9]{6}", answer.text)
    model = AutoModelForImageTextToText.from_pretrained(folder).eval()
    policy = foveate.policy(POLICY).but(budget=kept(len(found.prompt_token_ids)))
    fed = Answer(list(found.prompt_token_ids), list(answer.token_ids), None)
    _, _, logprobs = by_transformers(model, policy, fed)
    for place, allowed in enumerate([letters] * 6 + ["-"] + [digits] * 6):
        tokens = tokenizer.convert_tokens_to_ids(list(allowed))
        given = tokens.index(answer.token_ids[place])
        likely = logprobs[place, tokens]
        assert likely[given] >= likely.max() - LEAD


@pytest.mark.usefixtures("numba")
def test_drafts_of_ngrams_change_no_answer(llama, tmp_path):
    """Speculative decoding with n-grams | works | beside `when=over_budget` as well"""
    # its last layer is its first: it repeats itself, so that drafts are taken
    config = AutoConfig.from_pretrained(llama)
    config.tie_word_embeddings, config.initializer_range = True, 0.05
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    given, policy = [prompt[:40] * 5 for prompt in prompts([60, 50, 70])], "knorm:budget=60%"
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    small = {"num_gpu_blocks_override": 21, "max_model_len": 320}  # requests are preempted
    with engine(
        str(tmp_path), policy, speculative_config=drafts, disable_log_stats=False, **small
    ) as llm:
        drafted = serve(llm, given, 80)
        counted = {one.name: getattr(one, "value", 0) for one in llm.get_metrics()}
    check(model, drafted, [policy] * 3)
    accepted, offered = (
        counted[f"vllm:spec_decode_num_{kind}_tokens"] for kind in ("accepted", "draft")
    )
    assert 20 < accepted < offered
    assert drafted.preemptions > 0
    assert drafted.idle == 20


@pytest.mark.slow
def test_engines_in_data_parallel_answer_as_one(tiny_folder, tmp_path):
    """Data parallelism | works | each engine has a pool, and counters, of its own"""
    folder, given = tiny_folder("qwen2_vl"), [[x % 250 for x in one] for one in prompts([300] * 6)]
    none = ("--limit-mm-per-prompt", '{"image": 0, "video": 0}', "--served-model-name", "tiny")
    log = tmp_path / "log.txt"

    def answer(prompt):
        asked = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        body = one.post("/v1/completions", model="tiny", return_token_ids=True, **asked)
        return body["choices"][0]["token_ids"]

    with server(folder, POLICY, log, *none, "--data-parallel-size", "2") as one:
        with ThreadPoolExecutor(len(given)) as clients:
            answers = list(clients.map(answer, given))
        text = one.get("/metrics")
    assert not one.alive()
    with engine(folder, POLICY, limit_mm_per_prompt={"image": 0, "video": 0}) as llm:
        check_alike(answers, serve(llm, given, 8))
    compressed = re.findall(r'^foveate:prompts_total\{engine="(\d)".*\} (\d+)', text, re.M)
    assert {engine: int(count) > 0 for engine, count in compressed} == {"0": True, "1": True}
    assert sum(int(count) for _, count in compressed) == len(given)
