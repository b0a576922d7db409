"""What an engineer asks next: several answers, adapters, structured output, speculation."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.serving.engine import by_token, engine, greedy, prompts, serve
from tests.serving.test_images import chat
from tests.serving.test_requests import check

POLICY = "snapkv:budget=25%,window=8"
LENGTHS = (300, 135)


@pytest.fixture(scope="module")
def model(llama):
    return AutoModelForCausalLM.from_pretrained(llama).eval()


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
    first = [torch.tensor([by_token(row) for row in one.logprobs[:1]]) for one in found]
    for rows in first:  # of the first token, before anything is drawn
        torch.testing.assert_close(rows, alone.answers[0].logprobs[:1], rtol=0, atol=1e-3)


def adapter(folder, rank=4):
    """A random LoRA adapter of the query projections, and what it adds to their weights."""
    draw, weights, added = torch.Generator().manual_seed(0), {}, {}
    for layer in range(4):
        name = f"model.layers.{layer}.self_attn.q_proj"
        a, b = torch.randn(rank, 128, generator=draw), torch.randn(128, rank, generator=draw) * 0.02
        weights[f"base_model.model.{name}.lora_A.weight"] = a
        weights[f"base_model.model.{name}.lora_B.weight"] = b
        added[f"{name}.weight"] = b @ a  # alpha is the rank
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"bias": "none"}))
    return added


def test_adapters_are_compressed_as_the_merged_model(llama, model, tmp_path):
    """LoRA adapters | work | vLLM's build for CPUs gives the adapter of one request to all of a
    batch, with a policy and without
    """
    from vllm.lora.request import LoRARequest

    added, given = adapter(tmp_path), prompts(LENGTHS)
    with engine(llama, POLICY, enable_lora=True, max_lora_rank=8) as llm:
        found = {}
        for name, prompt in enumerate(given):
            with_it = LoRARequest("mine", 1, str(tmp_path)) if name == 0 else None
            sampling = greedy(8, logprobs=-1)
            llm.llm_engine.add_request(
                str(name), {"prompt_token_ids": prompt}, sampling, lora_request=with_it
            )
            found |= finished(llm)
    merged = AutoModelForCausalLM.from_pretrained(llama).eval()
    weights = merged.state_dict()
    merged.load_state_dict(weights | {name: weights[name] + more for name, more in added.items()})
    for name, one in (("1", model), ("0", merged)):
        answers = served_alone(found[name])
        check(one, answers, [POLICY])


def served_alone(output):
    """One finished request, as ``check`` looks at several."""
    from tests.serving.engine import Answer, Served

    (answer,) = output.outputs
    rows = torch.tensor([by_token(row) for row in answer.logprobs])
    one = Answer(list(output.prompt_token_ids), list(answer.token_ids), rows)
    return Served([one], [], [], {}, {}, 0, 0, [])


def test_structured_output_is_what_was_asked_for(tiny_folder):
    """Structured output | works | a choice, by xgrammar"""
    from vllm.sampling_params import StructuredOutputsParams

    folder, choices = tiny_folder("qwen2_vl"), ["a red house", "a blue boat"]
    given = {"prompt": chat("", 0) + "x" * 200}
    with engine(folder, POLICY, skip_tokenizer_init=False, limit_mm_per_prompt={"image": 0}) as llm:
        sampling = greedy(
            30,
            ignore_eos=False,
            detokenize=True,
            structured_outputs=StructuredOutputsParams(choice=choices),
        )
        pool = llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        llm.llm_engine.add_request("0", given, sampling)
        free = []
        found = {}
        while llm.llm_engine.has_unfinished_requests():
            found |= {one.request_id: one for one in llm.llm_engine.step()}
            free.append(pool.get_num_free_blocks())
    assert found["0"].outputs[0].text in choices
    held = [blocks for blocks in free if blocks < 63]  # first its grammar is compiled
    assert held[1] > held[0]  # the prompt was compressed


def test_drafts_of_ngrams_change_no_answer(llama, tmp_path):
    """Speculative decoding with n-grams | works | other methods are refused at the start"""
    # its last layer is its first: it repeats itself, so that drafts are taken
    config = AutoConfig.from_pretrained(llama)
    config.tie_word_embeddings, config.initializer_range = True, 0.05
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(tmp_path)
    given = [prompt[:40] * 6 for prompt in prompts([60, 50, 70])]
    drafts = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    with engine(str(tmp_path), POLICY) as llm:
        plain = serve(llm, given, 40)
    with engine(str(tmp_path), POLICY, speculative_config=drafts) as llm:
        drafted = serve(llm, given, 40)
    check(model, plain, [POLICY] * 3)
    assert [one.tokens for one in drafted.answers] == [one.tokens for one in plain.answers]
    assert len(drafted.free) < len(plain.free)  # fewer steps: some drafts were taken
    assert drafted.idle == 63
