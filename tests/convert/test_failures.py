"""What cannot be converted is said, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForImageTextToText

from foveate.errors import (
    CannotWrite,
    InvalidInput,
    InvalidParameter,
    ModelNotFound,
    UnsupportedModel,
)
from foveate.loading.model import authors_layout, load
from foveate_lab.convert import convert, layouts, write

from . import originals

SHARD = "model-00002-of-00003.safetensors"


@pytest.fixture
def damaged(make, tmp_path):
    """A copy of an original, to be damaged."""

    def copied(name="internvl"):
        return shutil.copytree(make(name).source, tmp_path / name)

    return copied


def refusal(source, error, vision=None):
    """What is said against converting it; nothing may be left."""
    target = source.parent / "new"
    with pytest.raises(error) as caught:
        convert(source, target, vision)
    assert [path.name for path in source.parent.iterdir()] == [source.name]
    return str(caught.value)


def edit(folder, **changes):
    """Changes entries of config.json; those that are None go."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def test_missing_shards_are_named(damaged):
    source = damaged()
    (source / SHARD).unlink()
    said = refusal(source, ModelNotFound)
    assert f"lacks 1 of the 3 shards that model.safetensors.index.json names: {SHARD}" in said


def test_a_shard_that_is_cut_off_is_named(damaged):
    source = damaged()
    (source / SHARD).write_bytes((source / SHARD).read_bytes()[:-1000])
    assert SHARD in refusal(source, ModelNotFound)
    source = damaged("qwen_vl")
    whole = (source / "pytorch_model.bin").read_bytes()
    (source / "pytorch_model.bin").write_bytes(whole[: len(whole) // 2])
    shutil.rmtree(source.parent / "internvl")
    assert "pytorch_model.bin' cannot be read" in refusal(source, ModelNotFound)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mlp1.1.bias": None}, "1 of .* missing: model.multi_modal_projector.linear_1.bias"),
        ({"mlp1.1.bias": torch.ones(3)}, r"linear_1.bias' has shape \[3\], but \[64\] by"),
        ({"mlp1.7.bias": torch.ones(3)}, r"'mlp1.7.bias' \[3\] does not belong"),
        (
            {"language_model.model.layers.7.ffn_norm.weight": torch.ones(64)},
            "is not in the model of config.json",
        ),
    ],
)
def test_weights_that_do_not_fit_are_named(make, tmp_path, change, said):
    one = make("internvl")
    source = shutil.copytree(
        one.source, tmp_path / "original", ignore=shutil.ignore_patterns("model*")
    )
    state = {name: t for name, t in (one.state | change).items() if t is not None}
    torch.save(state, source / "pytorch_model.bin")
    with pytest.raises(InvalidInput, match=said):
        convert(source, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["original"]


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("llava", {"mm_projector_type": "linear"}, "mm_projector_type .* only 'mlp2x_gelu'"),
        ("llava", {"image_aspect_ratio": "anyres"}, "image_aspect_ratio .* 'anyres'"),
        ("llava", {"mm_use_im_start_end": True}, "mm_use_im_start_end .* True"),
        ("llava", {"quantization_config": {"bits": 4}}, "are quantized"),
        ("mobilevlm", {"mm_projector_type": "ldpnet"}, "only 'ldpnetv2'"),
        ("internvl", {"ps_version": "v1"}, "ps_version .* only 'v2'"),
        ("internvl", {"template": "phi3-chat"}, "template .* 'phi3-chat'"),
        ("internvl", {"force_image_size": 48}, "force_image_size .* is 48, .* 24"),
        ("internvl", {"use_thumbnail": False}, "use_thumbnail .* only True"),
        ("qwen_vl", {"no_bias": False}, "no_bias .* only True"),
        ("qwen_vl", {"visual": None}, "not in the authors' layout of LLaVA-1.5, .* 'qwen'"),
    ],
)
def test_other_variants_are_refused(damaged, name, changes, said):
    source = damaged(name)
    edit(source, **changes)
    vision = source / "clip"
    message = refusal(source, UnsupportedModel, vision if vision.exists() else None)
    assert re.search(said, message)


def test_sizes_that_config_json_lacks_are_named(damaged):
    source = damaged("qwen_vl")
    edit(source, num_hidden_layers=None)
    assert "num_hidden_layers in" in refusal(source, InvalidInput)


def test_a_llava_needs_its_tower(damaged):
    source = damaged("llava")
    assert "sizes of the vision tower 'openai/clip-tiny'" in refusal(source, UnsupportedModel)
    edit(source, mm_vision_tower="openai/clip-vit-large-patch14-336")
    said = refusal(source, UnsupportedModel)
    assert "does not hold its vision tower" in said
    assert "--vision DIR" in said


def test_an_internvl_and_a_qwen_vl_take_no_tower(damaged):
    source = damaged()
    assert "leave --vision out" in refusal(source, InvalidInput, source)


@pytest.mark.parametrize(
    ("name", "file", "said"),
    [
        ("llava", "tokenizer.model", "has no tokenizer.model"),
        ("qwen_vl", "qwen.tiktoken", "has no qwen.tiktoken"),
        ("internvl", "tokenizer_config.json", "has no <IMG_CONTEXT>"),
        ("internvl", "config.json", "there is no config.json in it"),
        ("qwen_vl", "generation_config.json", "chat_format .* is None"),
    ],
)
def test_missing_files_are_named(damaged, name, file, said):
    source = damaged(name)
    (source / file).unlink()
    vision = source / "clip"
    errors = (ModelNotFound, InvalidInput, UnsupportedModel)
    assert re.search(said, refusal(source, errors, vision if vision.exists() else None))


@pytest.mark.parametrize("content", [b"\x0a", b"\xff" * 40, b"\x0a\x7fabc", b""])
def test_a_damaged_tokenizer_is_named(damaged, content):
    source = damaged()
    (source / "tokenizer.model").write_bytes(content)
    assert "tokenizer.model" in refusal(source, (ModelNotFound, UnsupportedModel))


def test_what_is_there_stays(make, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(InvalidParameter, match="exists already"):
        convert(make("internvl").source, tmp_path)
    assert (tmp_path / "note.txt").read_text() == "mine"


def test_what_a_kill_left_is_cleared_away(make, tmp_path):
    part = tmp_path / ".new-new"
    part.mkdir()
    (part / "config.json").write_text("half of it")
    convert(make("qwen_vl").source, tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_full_disk_leaves_nothing(make, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write, "save_file", full)
    with pytest.raises(CannotWrite, match="No space left"):
        convert(make("qwen_vl").source, tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_in_shards_it_is_the_same_model(make, tmp_path):
    one = make("internvl")
    convert(one.source, tmp_path / "new", shard=100_000)
    shards = sorted(tmp_path.glob("new/*.safetensors"))
    assert len(shards) > 3
    sizes = [sum(t.nbytes for t in load_file(path).values()) for path in shards]
    assert max(sizes) <= 100_000
    again = AutoModelForImageTextToText.from_pretrained(tmp_path / "new")
    expected = one.loaded.model.state_dict()
    assert all(torch.equal(t, expected[name]) for name, t in again.state_dict().items())


def test_an_original_is_sent_to_its_converter(make):
    with pytest.raises(UnsupportedModel, match=r"is a Qwen-VL in its authors' layout.*convert"):
        load(str(make("qwen_vl").source))


def test_a_model_of_transformers_is_none_of_them(make):
    assert authors_layout(make("llava").target) is None
    assert {one.name for one in layouts.LAYOUTS} == {
        authors_layout(make(name).source) for name in ("llava", "mobilevlm", "internvl", "qwen_vl")
    }


def test_a_qwen_vl_that_was_not_trained_to_chat_is_asked_plainly(tmp_path):
    originals.qwen_vl(tmp_path / "original", chat_format="raw")
    convert(tmp_path / "original", tmp_path / "new")
    loaded = load(str(tmp_path / "new"))
    asked = loaded.reader.apply_chat_template(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Is it?"}]}]
    )
    assert asked == "Picture 1: <imgpad>\nIs it?"
