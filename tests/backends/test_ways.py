"""Ways to load and to call a model. The first line of each test's docstring is its row in
docs/models.md: the way, what comes of it, and how or why.
"""

import copy
import threading
from functools import partial

import pytest
import torch
from torch._dynamo.eval_frame import OptimizedModule
from transformers import TextIteratorStreamer

import foveate
from foveate.errors import AlreadyCompressing, FoveateError, UnsupportedCache
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.conformance.compare import GREEDY, check_generate
from tests.defaults import DEFAULTS, default

PEFT_WARNS = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
WINDOW, RAGGED = "snapkv:budget=30%,window=4", "adakv:budget=30%,window=4"
RANDOM = "random:budget=30%"


def answer(model, inputs, **more):
    return model.generate(**inputs, **{**GREEDY, **more})


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours.logits, theirs.logits, strict=True))


def checked(model, inputs, policy=RAGGED):
    """All kept is the stock answer, and less kept the masked full cache."""
    stock = answer(model, inputs)
    with foveate.compress(model, "full"):
        assert same(answer(model, inputs), stock)
    check_generate(model, foveate.policy(policy), inputs)


def test_a_wrapper_of_torch_compile():
    """`torch.compile(model)` | works | the model in the wrapper is compressed; `generate` runs it
    as it is, calls of the wrapper are compiled
    """
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama")
    with foveate.compress(model, WINDOW) as session:
        expected = answer(model, inputs)
        kept = session.stats.kept_tokens
    wrapped = OptimizedModule(model, lambda function: function)
    with foveate.compress(wrapped, WINDOW) as session:
        assert same(wrapped.generate(**inputs, **GREEDY), expected)
        assert session.stats.kept_tokens == kept == 12


@PEFT_WARNS
def test_adapters_of_peft():
    """PEFT models | work | given as they are, or as `model.get_base_model()`; merged or not, under
    `disable_adapter()`, too
    """
    peft = pytest.importorskip("peft")
    model, inputs = zoo.fresh("llava"), zoo.prompt("llava", lengths=(23, 40))
    before = answer(model, inputs)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    adapted = peft.get_peft_model(model, config).eval()
    stock = adapted.generate(**inputs, **GREEDY)
    assert not same(stock, before)
    with foveate.compress(adapted, "full"):
        assert same(adapted.generate(**inputs, **GREEDY), stock)
        with adapted.disable_adapter():
            assert same(adapted.generate(**inputs, **GREEDY), before)
    with foveate.compress(adapted, RAGGED) as session:
        adapted.generate(**inputs, **GREEDY)
        assert session.stats.kept_tokens < session.stats.seen / 2
    check_generate(adapted.get_base_model(), foveate.policy(RAGGED), inputs)


@PEFT_WARNS
def test_a_prompt_of_peft_is_a_filled_cache():
    """PEFT's prefix tuning | refused | its prefix is a cache that was not read from tokens"""
    peft = pytest.importorskip("peft")
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama")
    tuned = peft.get_peft_model(
        model, peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    )
    with foveate.compress(tuned, WINDOW), pytest.raises(FoveateError):
        tuned.generate(**inputs, max_new_tokens=2)


@pytest.mark.parametrize("bits", [8, 4])
def test_weights_of_torchao(bits):
    """torchao's int8 and int4 weights | work | scores and storage see the activations, which stay
    in their own type
    """
    # Not among the tests' packages: where it is installed, transformers imports it, and it writes
    # to standard error what it cannot load.
    quantization = pytest.importorskip("torchao.quantization")
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama", lengths=(23, 40))
    before = answer(model, inputs)
    config = {
        8: quantization.Int8WeightOnlyConfig(version=2),
        4: quantization.IntxWeightOnlyConfig(weight_dtype=torch.int4),
    }[bits]
    quantization.quantize_(model, config)
    assert not same(answer(model, inputs), before)
    checked(model, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_activations_that_are_no_numbers(dtype):
    """bf16, fp16 whose activations overflow | refused | the error names the first layer whose
    keys, values, queries or scores are not numbers
    """
    model, inputs = zoo.fresh("llama").to(dtype), zoo.prompt("llama")
    model.model.layers[1].self_attn.k_proj.weight.data.fill_(torch.finfo(dtype).max)
    with foveate.compress(model, WINDOW), pytest.raises(FoveateError, match="layer 1"):
        answer(model, inputs)


@pytest.mark.parametrize("name", DEFAULTS)
def test_other_defaults_of_the_process(name):
    """`torch.set_default_dtype`, `torch.set_default_device` | work | whatever they are set to, the
    same is kept, and a seed draws the same tokens
    """
    model, inputs = zoo.fresh("llama").to(torch.bfloat16), zoo.prompt("llama")
    with foveate.compress(model, RANDOM):
        expected = answer(model, inputs)
        with default(name):
            assert same(answer(model, inputs), expected)


@pytest.mark.filterwarnings("ignore:You are calling .generate:UserWarning")  # on 5.4.0
def test_layers_that_wait_elsewhere(tmp_path):
    """`device_map` with layers offloaded to the disk | works | accelerate's hooks bring a layer in
    before it attends; what is kept stays where its layer computes
    """
    accelerate = pytest.importorskip("accelerate")
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama", lengths=(23, 40))
    with foveate.compress(model, RAGGED):
        expected = answer(model, inputs)
    spread = accelerate.disk_offload(copy.deepcopy(model), tmp_path, execution_device="cpu")
    stock = answer(spread, inputs)
    with foveate.compress(spread, "full"):
        assert same(answer(spread, inputs), stock)
    with foveate.compress(spread, RAGGED):
        assert same(answer(spread, inputs), expected)


class Words:
    """A tokenizer that a streamer can do with."""

    def decode(self, ids, **_):
        return "".join(f"{int(i)} " for i in ids)


def test_an_answer_that_streams():
    """`TextIteratorStreamer` | works | the answer comes word by word from another thread"""
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama")
    with foveate.compress(model, WINDOW) as session:
        chosen = {"logits_processor": None}  # by the model, as what is compared is the tokens
        expected = answer(model, inputs, **chosen).sequences[0, 40:].tolist()
        streamer = TextIteratorStreamer(Words(), skip_prompt=True)
        thread = threading.Thread(
            target=answer, args=(model, inputs), kwargs={"streamer": streamer, **chosen}
        )
        thread.start()
        said = "".join(streamer)
        thread.join()
        assert session.stats.kept_tokens == 12
    assert said.split() == [str(token) for token in expected]


def test_two_threads_with_one_model_each():
    """two threads, two models | works | each has a block of its own"""
    models = [zoo.fresh(family) for family in ("llama", "qwen2")]
    inputs = [zoo.prompt(family) for family in ("llama", "qwen2")]
    expected, found = [], [None, None]
    for model, prompt in zip(models, inputs, strict=True):
        with foveate.compress(model, RAGGED):
            expected.append(answer(model, prompt))

    def run(i):
        with foveate.compress(models[i], RAGGED):
            found[i] = [answer(models[i], inputs[i]) for _ in range(3)]

    in_threads([partial(run, 0), partial(run, 1)])
    assert all(same(one, expected[i]) for i in (0, 1) for one in found[i])


def test_two_threads_with_the_same_model():
    """two threads, one model in one block | works | a prompt and its answer wait until the one
    before is answered; `session.cache` and `stats` are those of the latest
    """
    model, prompts = zoo.fresh("llava"), [zoo.prompt("llava", seed=seed) for seed in range(4)]
    found = {}
    with foveate.compress(model, RAGGED):
        expected = [answer(model, prompt) for prompt in prompts]

        def run(i):
            found[i] = answer(model, prompts[i])

        in_threads([partial(run, i) for i in range(4)])
    assert all(same(found[i], expected[i]) for i in range(4))


def test_two_blocks_for_one_model():
    """two blocks for one model, also in two threads | refused | one block holds one policy"""
    model = zoo.fresh("llama")
    with (
        foveate.compress(model, WINDOW),
        pytest.raises(AlreadyCompressing),
        foveate.compress(model, RAGGED),
    ):
        pytest.fail("a second block was entered")


def test_a_cache_that_offloads():
    """`cache_implementation="static"`, `"offloaded"`, `"quantized"` | refused | such caches hold
    their pairs by rules of their own
    """
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama")
    with foveate.compress(model, WINDOW), pytest.raises(UnsupportedCache):
        answer(model, inputs, cache_implementation="static")


def test_tied_weights_and_experts():
    """mixtures of experts; embeddings that are tied or not | work | what is kept depends on
    attention alone
    """
    checked(zoo.build("qwen3_vl_moe"), zoo.prompt("qwen3_vl_moe", lengths=(31, 40)), WINDOW)


def test_a_prompt_in_chunks_by_hand():
    """a loop of one's own over `model(...)` | works | declare a prompt in chunks with
    `session.expect(tokens)`
    """
    model, inputs = zoo.fresh("llama"), zoo.prompt("llama")
    ids = inputs["input_ids"]
    with foveate.compress(model, WINDOW) as session:
        session.expect(40)
        cache = model(ids[:, :25]).past_key_values
        model(ids[:, 25:], **{CACHE: cache})
        assert [layer.pairs.longest for layer in foveate_layers(cache)] == [12] * len(cache.layers)


def in_threads(jobs):
    threads = [threading.Thread(target=job) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
