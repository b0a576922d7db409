"""Checkpoints whose weights are not those of the class that loads them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaModel, WhisperConfig, WhisperForConditionalGeneration
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate.errors import UnsupportedModel
from foveate.loading.checkup import checkup
from foveate.loading.model import load
from foveate.memory import Request, fit
from tests import zoo
from tests.zoo.directory import save_llama, tokenizer


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An audio model, whose decoder transformers also loads alone, as a causal model."""
    sizes = {
        f"{part}_{name}": value
        for part in ("encoder", "decoder")
        for name, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 8}.items()
    }
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    folder = tmp_path_factory.mktemp("whisper")
    config = WhisperConfig(d_model=8, vocab_size=zoo.VOCAB, **sizes, **ids)
    WhisperForConditionalGeneration(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


def with_weights(saved: Path, folder: Path, **more: Tensor) -> Path:
    """A copy of the model with these weights beside its own."""
    shutil.copytree(saved, folder)
    path = folder / "model.safetensors"
    save_file(load_file(path) | more, path, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("command", "status"),
    [(("run", "--prompt", "hi", "--model"), 2), (("chat", "--model"), 2), (("doctor",), 1)],
)
def test_commands_refuse_an_audio_model_whose_encoder_would_not_be_loaded(
    whisper: Path, command: tuple[str, ...], status: int
) -> None:
    done = CliRunner().invoke(app, [*command, str(whisper)])
    letters = "".join(done.output.split())  # a table breaks lines inside paths
    assert done.exit_code == status
    assert "asWhisperForCausalLM,whichleaves22ofitsweightsunused:model.encoder(22)." in letters
    assert "canbecompressed" not in letters
    assert "LOADREPORT" not in letters


def test_fit_does_not_count_the_decoder_of_an_audio_model_alone(whisper: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"encoder-decoder model \(whisper\)"):
        fit(str(whisper), Request(), 10**9)


def test_weights_of_a_part_that_the_class_lacks_are_refused(saved: Path, tmp_path: Path) -> None:
    more = {f"audio_tower.layers.{index}.weight": torch.ones(2) for index in range(3)}
    model = with_weights(saved, tmp_path / "m", **more)
    with pytest.raises(UnsupportedModel, match=r"leaves 3 .* unused: audio_tower \(3\)\."):
        load(str(model))
    assert not checkup(str(model))[1].fine


def test_leftovers_of_other_releases_and_draft_layers_are_let_through(
    saved: Path, tmp_path: Path
) -> None:
    names = (
        "model.layers.0.self_attn.rotary_emb.inv_freq",
        "model.layers.0.self_attn.k_scale",
        "model.mtp.layers.0.weight",
    )
    model = with_weights(saved, tmp_path / "m", **{name: torch.ones(2) for name in names})
    assert load(str(model)).model.num_parameters() == zoo.build("llama").num_parameters()
    assert all(finding.fine for finding in checkup(str(model)))


def test_weights_that_would_be_drawn_at_random_are_refused(saved: Path, tmp_path: Path) -> None:
    model = shutil.copytree(saved, tmp_path / "m")
    config = zoo.build("llama").config
    config.tie_word_embeddings = False
    LlamaModel(config).save_pretrained(model)
    with pytest.raises(UnsupportedModel, match=r"lacks 1 of its weights: lm_head \(1\)"):
        load(str(model))


def test_weights_of_another_shape_are_refused_by_name(saved: Path, tmp_path: Path) -> None:
    model = shutil.copytree(saved, tmp_path / "m")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"intermediate_size": 24}))
    with pytest.raises(UnsupportedModel, match=r"another shape .* such as model\.layers\.0\.mlp"):
        load(str(model))
    assert "another shape" in checkup(str(model))[1].said


def test_doctor_names_a_file_of_weights_that_was_cut_off(saved: Path, tmp_path: Path) -> None:
    model = shutil.copytree(saved, tmp_path / "m")
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "cannot be read" in checkup(str(model))[1].said
