"""Models that vLLM serves and Foveate's worker refuses, as the tiny models that they are."""

import pytest
import torch
from transformers import BloomConfig, BloomForCausalLM, Gemma2Config, Gemma2ForCausalLM

from foveate.backends.vllm.support import DECODER
from foveate.errors import UnsupportedEngine
from tests.serving.engine import engine

BLOOM = BloomForCausalLM, BloomConfig(vocab_size=128, hidden_size=64, n_layer=2, n_head=2)
GEMMA2 = (
    Gemma2ForCausalLM,
    Gemma2Config(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        head_dim=32,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        sliding_window=128,
    ),
)


@pytest.mark.parametrize(("made", "said"), [(BLOOM, "ALiBi"), (GEMMA2, "soft cap")])
def test_models_whose_attention_the_scores_do_not_see_are_refused(tmp_path, made, said):
    kind, config = made
    torch.manual_seed(0)
    kind(config).float().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedEngine, match=said), engine(str(tmp_path), "knorm:budget=25%"):
        pass


def test_what_refusals_rely_on_is_there():
    from vllm.config import ModelConfig
    from vllm.v1.attention.backend import AttentionType
    from vllm.v1.core.sched.output import NewRequestData

    assert {"is_encoder_decoder", "is_mm_prefix_lm"} <= vars(ModelConfig).keys()
    assert "enable_prompt_embeds" in ModelConfig.__annotations__
    assert "req_id" in NewRequestData.__annotations__
    assert AttentionType.DECODER.value == DECODER
