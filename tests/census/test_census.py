"""A part of the census on every run, and what it says of the whole: ``make census`` runs all."""

import inspect
import re
from pathlib import Path

import pytest
import transformers

from tests.pairs import by_turns

from . import IMAGE_TEXT, TEXT, families
from .known import read
from .shrink import shrunk
from .specimen import Entry
from .verdicts import POLICIES, verdict

pytestmark = pytest.mark.filterwarnings("ignore")  # of stock models
RELEASE = transformers.__version__
KNOWN = read().get(RELEASE, {})
MODELS = Path(transformers.__file__).parent / "models"

SOME = (  # of each kind: towers, positions, layers, generate of an inner model, sharing, refusals
    "qwen3_5",
    "glm4v",
    "minicpmv4_6",
    "molmo2",
    "ernie4_5_vl_moe",
    "gemma4",
    "gemma3n",
    "blip-2",
    "kosmos-2",
    "minimax_m3_vl",
    "nemotron_h_omni",
    "video_llama_3",
    "llava_next_video",
    "cohere2_vision",
    "gpt_oss",
    "jamba",
    "inkling2",
    "git",
    "qwen4_exp",
    "diffusion_gemma",
    "mistral4",
    "hy_v4_vl",
)

BRANCHES = {  # models whose code asks for the name of its attention, by what comes of it
    "axk2": "sparse attention beside latents",
    "decision_transformer": "no language model",
    "deepseek_v32": "sparse attention beside latents",
    "diffusion_gemma": "refused",
    "dots3_note": "sparse attention, in the census",
    "falcon": "an attention of its own: refused",
    "gemma4": "its mask, in the census",
    "gemma4_unified": "its mask, in the census",
    "glm5_next": "sparse attention: refused",
    "glm_moe_dsa": "sparse attention beside latents",
    "gpt2": "upcasting, in the census",
    "hy_v4": "sparse attention beside latents",
    "hy_v4_vl": "sparse attention, in the census",
    "minimax_m3_vl": "its sparse mask, in the census",
    "mistral_large4": "sparse attention, in the census",
    "qwen2_5_omni": "its tower",
    "timm_backbone": "a tower",
    "timm_wrapper": "a tower",
}


@by_turns(name=[each for each in SOME if each in (*IMAGE_TEXT, *TEXT)], policy=POLICIES.keys())
def test_a_type_is_what_the_census_found(name, policy):
    found = verdict(name, (policy,))
    assert found.kind in ("exact", "refused", "not built"), found.reason
    if KNOWN:
        known = KNOWN[name]
        assert (found.kind, found.reason, found.steps) == (known.kind, known.reason, known.steps)


@pytest.mark.skipif(not KNOWN, reason=f"the census did not run on transformers {RELEASE}")
def test_the_census_knows_every_type_and_none_is_wrong():
    assert set(KNOWN) == {*IMAGE_TEXT, *TEXT}
    assert {one.kind for one in KNOWN.values()} == {"exact", "refused", "not built"}
    assert all(one.reason for one in KNOWN.values() if one.kind != "exact")


def test_tiny_layers_differ_wherever_the_default_layers_do():
    for name in IMAGE_TEXT:
        kind, entry = transformers.CONFIG_MAPPING[name], families.ENTRIES.get(name, Entry())
        if "per_layer_config" in inspect.getsource(inspect.getmodule(kind)):
            usual = differing_settings(kind(**entry.start))
            tiny = differing_settings(shrunk(kind, entry.overrides, entry.start))
            assert tiny >= usual, name
            assert usual or name not in ("dots3_note", "gemma4")


def differing_settings(config):
    """Names of the decoder's settings that transformers refuses to read for all layers at once."""
    specification = getattr(config.get_text_config(decoder=True), "_heterogeneity_spec", None)
    return getattr(specification, "per_layer_attributes", set())


@pytest.mark.skipif(list(read())[-1] != RELEASE, reason="these are those of the newest release")
def test_every_model_that_asks_for_the_name_of_its_attention_is_known():
    asks = re.compile(r"_attn_implementation\s*(==|!=|in |not in )")
    found = {
        path.parent.name
        for path in MODELS.glob("*/modeling_*.py")
        if any(asks.search(line) for line in path.read_text(encoding="utf-8").splitlines())
    }
    assert found == set(BRANCHES)
    for name, what in BRANCHES.items():
        if name in KNOWN:
            assert KNOWN[name].kind == ("refused" if "refused" in what else "exact"), name
