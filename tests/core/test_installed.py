"""Profiles that are installed: only whole ones, found for the model that they are of."""

import json
import logging
from dataclasses import replace

import pytest
import torch

import foveate
from foveate.cli.profiles import share
from foveate.errors import InvalidInput, ProfileMismatch
from foveate.hf.attach import model_policy
from foveate.hf.layer.support import model_name
from foveate.hf.model.weights import weights_digest
from foveate.profiles import installed
from foveate.profiles.tensor_profile import load_tensors
from tests import zoo
from tests.profiles import saved


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where profiles are installed."""
    monkeypatch.setenv(installed.VARIABLE, str(tmp_path / "installed"))
    model_policy._log_once.cache_clear()
    return tmp_path / "installed"


@pytest.fixture
def shared(tmp_path):
    """The folder of a profile that was shared."""
    folder = tmp_path / "shared"
    folder.mkdir()
    profile = foveate.calibrate(zoo.build("llama"), "recommended", [zoo.prompt("llama")])
    share(profile, profile.save(folder / "recommended.safetensors"), None)
    return folder


def test_recommended_finds_the_profile_that_is_installed_for_its_model(place, shared, caplog):
    caplog.set_level(logging.INFO, logger="foveate")
    model = zoo.fresh("llama")
    plain = foveate.policy("recommended:budget=50%")
    assert foveate.compress(model, plain).policy == plain
    one = installed.install(shared, model_name(model))
    assert one.profile.weights == weights_digest(model)
    assert [each.path for each in installed.listed()[0]] == [one.path]
    with foveate.compress(model, "recommended:budget=50%,recent=3") as session:
        session.prefill(**zoo.prompt("llama"))
    expected = f"recommended:budget=50%,profile={one.path},recent=3"
    assert session.policy == foveate.policy(expected)
    assert "uses the profile installed" in caplog.text
    named = f"recommended:budget=50%,profile={shared}/recommended.safetensors"
    for policy in map(foveate.policy, (named, "knorm:budget=50%")):
        assert foveate.compress(model, policy).policy == policy
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] = 9.0
    assert foveate.compress(model, plain).policy == plain
    assert "does not use the installed profile" in caplog.text
    installed.install(shared / "recommended.safetensors")  # in the place of the other
    assert len(installed.listed()[0]) == 1
    installed.remove(installed.listed()[0][0])
    assert installed.listed() == ([], [])


def test_what_is_not_whole_or_of_another_model_is_not_installed(place, shared, tmp_path):
    with pytest.raises(ProfileMismatch, match="not of 'other'"):
        installed.install(shared, "other")
    manifest = shared / installed.MANIFEST
    said = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**said, "model": "another"}))
    with pytest.raises(InvalidInput, match=r"was changed after it was written.*--share"):
        installed.install(shared)
    manifest.write_text(json.dumps({**said, "schema": "of-tomorrow"}))
    with pytest.raises(InvalidInput, match="of-tomorrow"):
        installed.install(shared)
    manifest.write_text(json.dumps(said))
    file = shared / "recommended.safetensors"
    profile = load_tensors(str(file), "recommended")
    replace(profile, weights="0" * 16).save(file)
    with pytest.raises(InvalidInput, match=r"as many bytes .* but other contents"):
        installed.install(shared)
    share(profile, file, None)
    with pytest.raises(ProfileMismatch, match="says weights="):
        installed.install(shared)
    file.write_bytes(b"no profile")
    with pytest.raises(InvalidInput, match="not a profile of tensors"):
        installed.install(file)
    with pytest.raises(InvalidInput, match="holds 0 profiles"):
        installed.install(place.parent)
    assert installed.listed() == ([], [])
    broken = installed.install(saved(tmp_path, "mixkv", [0.5, 0.5, 0.5])).path
    broken.write_text("{}")
    assert "schema" in str(installed.listed()[1][0])
