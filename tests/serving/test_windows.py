"""A model whose layers take turns: windows, which keep what they have, and full attention."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig

import foveate
from foveate.errors import UnsupportedEngine
from foveate.vllm.plans.tiers import rooms_of
from tests.serving.engine import check_same, engine, prompts, serve
from tests.serving.following import in_blocks, recorded, same
from tests.serving.test_llama import check_against_transformers

POLICY = "snapkv:budget=25%,window=8"
AGAIN = "snapkv:budget=64,window=8,when=over_budget(every=64,reading=true)"
LENGTHS = (300, 64, 171)
CONFIG = Gemma3TextConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=4,
    head_dim=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=1024,
    pad_token_id=0,
    query_pre_attn_scalar=32,
    sliding_window=64,
    initializer_range=0.3,
    layer_types=["sliding_attention", "full_attention"] * 2,
)


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("gemma3")
    Gemma3ForCausalLM(CONFIG).float().eval().save_pretrained(folder)
    return str(folder)


def served(folder, policy, **options):
    with engine(folder, policy, num_gpu_blocks_override=128, **options) as llm:
        return serve(llm, prompts(LENGTHS), tokens=12)


def test_full_layers_are_compressed_and_windows_are_not(gemma3):
    policy, model = foveate.policy(POLICY), AutoModelForCausalLM.from_pretrained(gemma3).eval()
    (room,), _ = rooms_of([policy], 2, 1, longest=1024)
    stock, found = served(gemma3, None), served(gemma3, POLICY)
    freed = sum(room.gap(length, 32) for length in LENGTHS)
    assert found.free[1] - stock.free[1] == freed > 0
    assert {place for _, place in found.kept} == {0, 1}  # two of the four layers
    check_against_transformers(model, POLICY, found)


@pytest.mark.parametrize("chunk", [2048, 48])
def test_windows_stay_beside_a_policy_that_compresses_again(gemma3, chunk):
    """Windows beside `when=over_budget` | stay as they are | prompts that begin alike share nothing
    there
    """
    model = AutoModelForCausalLM.from_pretrained(gemma3).eval()
    sizes = {"num_gpu_blocks_override": 33, "max_model_len": 512, "max_num_batched_tokens": chunk}
    with recorded() as kept, engine(gemma3, AGAIN, **sizes, enable_prefix_caching=True) as llm:
        served = serve(llm, prompts(LENGTHS), tokens=100)
    for name, answer in enumerate(served.answers):
        assert len(answer.tokens) == 100
        _, every = in_blocks(foveate.policy(AGAIN), len(answer.prompt))
        reached = [end := every.after(0)]
        while (end := every.after(end)) <= len(answer.prompt) + 98:
            reached.append(end)
        assert same(model, AGAIN, answer, kept[name]) == reached
    assert served.idle == 32


def test_keeping_everything_is_stock_vllm(gemma3):
    stock, whole = served(gemma3, None), served(gemma3, "snapkv:budget=100%,window=8")
    check_same(whole, stock)


@pytest.mark.parametrize(
    ("policy", "options", "said"),
    [
        (POLICY, {"disable_hybrid_kv_cache_manager": True}, "disable-hybrid-kv-cache-manager"),
        ("pyramidkv:budget=25%,window=8", {}, "differs by layer"),
    ],
)
def test_what_cannot_stand_beside_windows_is_refused(gemma3, policy, options, said):
    with pytest.raises(UnsupportedEngine, match=said), engine(gemma3, policy, **options):
        pass
