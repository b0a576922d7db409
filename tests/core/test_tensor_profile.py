"""Profiles of tensors belong to a method and a model, as profiles of numbers do."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import foveate
from foveate.errors import FoveateError, InvalidInput, ProfileMismatch
from foveate.profiles.ledger import SumsLedger
from foveate.profiles.tensor_profile import TensorProfile, load_tensors
from tests.fuzz import fuzzed
from tests.profiles import saved, saved_tensors

from .prompts import prompt

WAY_OUT = "Make one with 'foveate calibrate q_filters --model MODEL'."
HEADING = {
    "schema": "foveate-profile-1",
    "method": "q_filters",
    "model": "tiny",
    "layers": "2",
    "samples": "1",
    "budget": "",
}


def filters(layers=2, heads=2, channels=8):
    generator = torch.Generator().manual_seed(0)
    return [{"filters": torch.randn(heads, channels, generator=generator)} for _ in range(layers)]


def written(folder, tensors, **changes):
    """A file as another program may write it."""
    path = folder / "written.safetensors"
    note = {k: v for k, v in {**HEADING, **changes}.items() if v is not ...}
    save_file(tensors, path, note)
    return str(path)


def test_a_saved_profile_is_read_as_it_was(tmp_path):
    made = filters()
    path = saved_tensors(tmp_path, "q_filters", made)
    found = load_tensors(str(path), "q_filters")
    assert (found.method, found.model, found.layers, found.samples, found.budget) == (
        *("q_filters", "tiny", 2, 1, ""),
    )
    for ours, theirs in zip(found.by_layer, made, strict=True):
        assert torch.equal(ours["filters"], theirs["filters"])
    assert set(load_file(path)) == {"filters.0", "filters.1"}
    changed = filters()
    changed[1]["filters"] += 1
    saved_tensors(tmp_path, "q_filters", changed)
    again = load_tensors(str(path), "q_filters")
    assert torch.equal(again.by_layer[1]["filters"], changed[1]["filters"])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": "foveate-profile-0"}, "'foveate-profile-0', expected 'foveate-profile-1'"),
        ({"schema": ...}, "schema None"),
        ({"model": ...}, "its model is None"),
        ({"layers": "two"}, "its layers is 'two'"),
        ({"layers": "-2"}, "its layers is '-2'"),
        ({"layers": "1"}, "says 1 layers and holds the tensor 'filters.1'"),
        ({"layers": "3"}, "says 3 layers and holds tensors of 2"),
        ({"layers": "9" * 400}, "layers and holds tensors of 2"),
        ({"samples": ...}, "its samples is None"),
    ],
)
def test_a_heading_that_is_not_right_is_refused(tmp_path, changes, says):
    tensors = {f"filters.{i}": t["filters"] for i, t in enumerate(filters())}
    path = written(tmp_path, tensors, **changes)
    with pytest.raises(InvalidInput) as refused:
        load_tensors(path, "q_filters")
    assert says in str(refused.value)
    assert str(refused.value).endswith(WAY_OUT)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"filters.0": torch.ones(2, 8), "mean.1": torch.ones(2)}, r"layer 1 has .*\['mean'\]"),
        ({"filters.0": torch.ones(2), "filters": torch.ones(2)}, "the tensor 'filters'"),
        ({"filters.0": torch.ones(2), "filters.1": torch.tensor([torch.nan])}, "not finite"),
        ({}, "holds tensors of 0"),
    ],
)
def test_tensors_that_are_not_the_methods_are_refused(tmp_path, tensors, says):
    with pytest.raises(InvalidInput, match=says):
        load_tensors(written(tmp_path, tensors), "q_filters")


def test_other_files_are_refused_by_name(tmp_path):
    numbers = saved(tmp_path, "mixkv", [[0.5, 0.5]] * 2)
    for path in (numbers, tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(InvalidInput) as refused:
            foveate.q_filters(budget="20%", profile=str(path))
        assert str(path) in str(refused.value)
        assert str(refused.value).endswith(WAY_OUT)
    tensors = saved_tensors(tmp_path, "q_filters", filters())
    with pytest.raises(InvalidInput, match=r"q_filters\.safetensors"):
        foveate.mixkv(budget="20%", profile=str(tensors))
    with pytest.raises(ProfileMismatch, match="of q_filters, not of expected_attention"):
        foveate.expected_attention(budget="20%", profile=str(tensors))


@fuzzed
@given(at=st.integers(0, 400), gone=st.integers(0, 400), new=st.binary(max_size=4))
def test_a_damaged_file_is_a_profile_or_refused_by_name(tmp_path, at, gone, new):
    whole = saved_tensors(tmp_path, "q_filters", filters()).read_bytes()
    path = tmp_path / f"{at}-{gone}-{hash(new)}.safetensors"
    path.write_bytes(whole[:at] + new + whole[at + gone :])
    try:
        load_tensors(str(path), "q_filters")
        refused = str(path)
    except FoveateError as error:
        refused = str(error)
    assert str(path) in refused


def test_a_file_that_is_cut_short_is_refused(tmp_path):
    path = saved_tensors(tmp_path, "q_filters", filters())
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(InvalidInput, match=r"is not a profile of tensors: .*Make one with"):
        foveate.q_filters(budget="20%", profile=str(path))


def test_the_length_of_the_longest_prompt_is_a_whole_number(tmp_path):
    path = saved_tensors(tmp_path, "q_filters", filters())
    profile = load_tensors(str(path), "q_filters")
    assert profile.longest == 0
    assert load_tensors(str(replace(profile, longest=40).save(path)), "q_filters").longest == 40
    replace(profile, longest=-1).save(path)
    with pytest.raises(InvalidInput, match=r"is not a profile of tensors: its longest is '-1'"):
        load_tensors(str(path), "q_filters")


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        (filters(layers=3), "with 3 layers, and 2 layers are to be compressed"),
        (filters(heads=1), r"shape \(1, 8\) for layer 0, whose heads and channels need \(2, 8\)"),
        (
            filters(channels=6),
            r"shape \(2, 6\) for layer 0, whose heads and channels need \(2, 8\)",
        ),
    ],
)
def test_other_layers_heads_and_channels_are_refused(tmp_path, profile, says):
    path = saved_tensors(tmp_path, "q_filters", profile)
    policy = foveate.q_filters(budget="50%", profile=str(path))
    with pytest.raises(ProfileMismatch, match=says) as refused:
        foveate.compress_tensors(policy, prompt([20], h=2, d=8, depth=2).layers)
    assert str(refused.value).endswith(WAY_OUT)


def test_one_that_may_be_left_out_says_so():
    profile = TensorProfile(
        method="expected_attention", model="a", layers=1, samples=1, budget="", by_layer=[{}]
    )
    with pytest.raises(ProfileMismatch, match="or leave profile out"):
        profile.check_model("b")


# ------------------------------------------------------------------- sums on disk


def sums(x):
    return [{"total": torch.tensor([x, 2 * x]).double()}, {"total": torch.tensor(x).double()}]


def test_sums_go_on_where_they_were(tmp_path):
    path, heading = tmp_path / "sums.part", {"calibrating": "q_filters", "model": "a"}
    for done in range(3):
        ledger = SumsLedger(path, heading)
        for i, sample in enumerate("abc"[: done + 1]):
            assert ledger.lacks(sample) == (i == done)
        ledger.add(sums(10.0**done))
        assert ledger.samples == list("abc"[: done + 1])
    assert_close(ledger.by_layer[0]["total"], torch.tensor([111.0, 222.0]).double())
    assert_close(ledger.by_layer[1]["total"], torch.tensor(111.0).double())
    ledger.close()
    assert not path.exists()


def test_sums_of_another_measurement_are_refused(tmp_path):
    path = tmp_path / "sums.part"
    ledger = SumsLedger(path, {"model": "a"})
    assert ledger.lacks("first")
    ledger.add(sums(1.0))
    with pytest.raises(InvalidInput, match=r"of another measurement.*delete the file"):
        SumsLedger(path, {"model": "b"})
    with pytest.raises(InvalidInput, match="sample 1 is another one"):
        SumsLedger(path, {"model": "a"}).lacks("second")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(InvalidInput, match="cannot be read"):
        SumsLedger(path, {"model": "a"})
    path.write_text("{}\n")
    with pytest.raises(InvalidInput, match="cannot be read"):
        SumsLedger(path, {"model": "a"})
