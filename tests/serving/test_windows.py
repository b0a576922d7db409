"""A model whose layers take turns: windows, which keep what they have, and full attention."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig

import foveate
from foveate.errors import UnsupportedEngine
from foveate.vllm.plans.tiers import rooms_of
from tests.serving.engine import check_same, engine, prompts, serve
from tests.serving.test_llama import check_against_transformers

POLICY = "snapkv:budget=25%,window=8"
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
