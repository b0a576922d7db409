"""LLaVA-1.5's images reach it padded, as the papers' authors have it, from either layout."""

from __future__ import annotations

import shutil

import pytest
import torch
from PIL import Image, ImageDraw

from foveate.errors import InvalidInput
from foveate.prompts.prompt import read
from foveate_lab.reproduce import EXPERIMENTS, find_experiments
from foveate_lab.reproduce.models import MODELS, Place
from foveate_lab.reproduce.running.lab import Lab
from tests.zoo.directory import save_llava

LLAVA = {name for name, model in MODELS.items() if model.pad_images}


def wide():
    """Words at both ends, which a square crop would lose."""
    image = Image.new("RGB", (320, 80), "white")
    for x, word in ((4, "FIRST"), (270, "LAST")):
        ImageDraw.Draw(image).text((x, 30), word, fill="black", font_size=18)
    return image


@pytest.fixture
def directory(tmp_path):
    return str(save_llava(tmp_path / "llava"))


def settings(out, directory, experiment, name):
    lab = Lab(
        find_experiments([experiment]), out=out, data=out, models=[f"{name}={directory}"], limit=1
    )
    with lab:
        (setting,) = lab.settings(*lab.experiments)
        yield setting


@pytest.mark.parametrize(
    ("experiment", "name", "pads"),
    [("csp:fig1b", "llava-1.5-7b", True), ("mixkv:fig3", "qwen2-vl-7b", False)],
)
def test_a_wide_image_is_padded_for_llava_alone(tmp_path, directory, experiment, name, pads):
    image = wide()
    (setting,) = settings(tmp_path / "out", directory, experiment, name)
    seen = read(setting.load(), "?", [image]).inputs["pixel_values"]
    padded, cropped = (
        read(Place(directory, one).load(False, None), "?", [image]).inputs["pixel_values"]
        for one in (True, False)
    )
    assert torch.equal(seen, padded if pads else cropped)
    assert not torch.equal(padded, cropped)
    assert setting.results.folder.name == setting.profiles.name == "llava" + "-padded" * pads


def test_every_experiment_with_it_says_so():
    assert {"llava-1.5-7b", "llava-1.5-13b"} == LLAVA
    for one in EXPERIMENTS.values():
        padded = [note for note in one.to_json(())["settled"] if "padded to squares" in note]
        assert len(padded) == len(LLAVA & {*one.models}), one.id


def test_a_model_that_is_no_llava_is_refused_by_what_is_known():
    with pytest.raises(InvalidInput, match=r"'demo' stands for LLaVA-1\.5, .* Give a LLaVA-1\.5"):
        Place("demo", True).load(False, None)


def test_a_copy_has_the_same_weights_and_another_model_of_its_name_has_not(tmp_path, directory):
    copy = shutil.copytree(directory, tmp_path / "copy" / "llava")
    mine = Place(directory, False).weights
    assert mine == Place(str(copy), True).weights
    (path,) = copy.glob("*.safetensors")
    with path.open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"0000")
    assert mine != Place(str(copy), True).weights
    assert Place("demo", False).weights is Place("owner/model", False).weights is None
