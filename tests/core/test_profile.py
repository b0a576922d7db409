"""Profiles are small JSON files that belong to a method, a model and, for some, a budget."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import foveate
from foveate.compression.tensors import layers_of
from foveate.errors import FoveateError, InvalidInput, InvalidParameter, ProfileMismatch
from foveate.profiles.profile import (
    CALIBRATIONS,
    SCHEMA,
    Profile,
    Run,
    calibrated_method,
    load,
    mean,
)
from tests.fuzz import fuzzed

from .prompts import prompt
from .users import unchecked

RATIOS = [0.3, 0.15, 0.15]
REDUNDANCIES = [[0.1, 0.9], [0.0, 1.0], [0.25, 0.5]]


def ratios(**changes):
    """What prefixkv measures: one number a layer, at a budget."""
    usual = {
        "method": "prefixkv",
        "model": "some-model",
        "layers": 3,
        "samples": 2,
        "budget": "20%",
        "by_layer": RATIOS,
    }
    return Profile(**{**usual, **changes})


def redundancies(**changes):
    """What mixkv measures: one number a layer and KV head, at no budget."""
    return ratios(**{"method": "mixkv", "budget": "", "by_layer": REDUNDANCIES, **changes})


@pytest.fixture
def written(tmp_path):
    """Writes a profile with some values changed (or, if ..., left out), as another program may."""

    def write(**changes):
        values = {
            "method": "prefixkv",
            "model": "some-model",
            "layers": 3,
            "samples": 2,
            "budget": "20%",
            "by_layer": RATIOS,
            "schema": SCHEMA,
            **changes,
        }
        path = tmp_path / "written.json"
        path.write_text(json.dumps({k: v for k, v in values.items() if v is not ...}))
        return str(path)

    return write


# ------------------------------------------------------------------- files


@pytest.mark.parametrize("profile", [ratios(), redundancies()], ids=["prefixkv", "mixkv"])
def test_a_saved_profile_is_read_as_it_was(tmp_path, profile):
    path = profile.save(tmp_path / "profile.json")
    assert path == tmp_path / "profile.json"
    assert load(str(path), profile.method) == profile
    assert profile.save(str(path)) == path


def test_the_file_is_plain_json_with_the_schema(tmp_path):
    found = json.loads(ratios().save(tmp_path / "profile.json").read_text())
    assert found == {
        "method": "prefixkv",
        "model": "some-model",
        "layers": 3,
        "samples": 2,
        "budget": "20%",
        "by_layer": [0.3, 0.15, 0.15],
        "schema": "foveate-profile-1",
        "weights": "",
    }


def test_a_profile_that_is_saved_again_is_read_again(tmp_path):
    path = tmp_path / "profile.json"
    ratios().save(path)
    assert load(str(path), "prefixkv").by_layer == RATIOS
    ratios(by_layer=[0.2, 0.2, 0.2]).save(path)
    assert load(str(path), "prefixkv").by_layer == [0.2, 0.2, 0.2]


def test_a_file_that_another_program_wrote_again_is_read_again(tmp_path):
    path = ratios().save(tmp_path / "profile.json")
    assert load(str(path), "prefixkv").by_layer == RATIOS
    path.write_text(path.read_text().replace("0.15", "0.025"))
    assert load(str(path), "prefixkv").by_layer == [0.3, 0.025, 0.025]


def test_a_relative_name_is_that_of_the_present_directory(tmp_path, monkeypatch):
    for name, values in (("first", [0.1, 0.2, 0.3]), ("second", [0.3, 0.2, 0.1])):
        (tmp_path / name).mkdir()
        ratios(by_layer=values).save(tmp_path / name / "profile.json")
    monkeypatch.chdir(tmp_path / "first")
    assert load("profile.json", "prefixkv").by_layer == [0.1, 0.2, 0.3]
    monkeypatch.chdir(tmp_path / "second")
    assert load("profile.json", "prefixkv").by_layer == [0.3, 0.2, 0.1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"schema": "foveate-profile-0"}, "'foveate-profile-0'"),
        ({"schema": ...}, "None"),
        ({"schema": 1}, "schema 1"),
    ],
)
def test_another_schema_is_refused(written, changes, says):
    path = written(**changes)
    with pytest.raises(InvalidInput) as refused:
        load(path, "prefixkv")
    assert path in str(refused.value)
    assert says in str(refused.value)
    assert "expected 'foveate-profile-1'" in str(refused.value)
    assert "'foveate calibrate prefixkv --model MODEL'" in str(refused.value)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"text"'])
def test_json_that_is_no_object_has_no_schema(tmp_path, text):
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"schema None.*foveate calibrate mixkv"):
        load(str(path), "mixkv")


def unreadable(tmp_path, kind):
    path = tmp_path / kind
    if kind == "a directory":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes(
            {
                "empty": b"",
                "text": b"ratios",
                "cut off": b'{"schema": "fov',
                "bytes": b"\xff\xfe\x00",
            }[kind]
        )
    return str(path)


UNREADABLE = ["missing", "a directory", "empty", "text", "cut off", "bytes"]


@pytest.mark.parametrize("kind", UNREADABLE)
def test_what_is_no_json_file_is_refused_by_name(tmp_path, kind):
    path = unreadable(tmp_path, kind)
    with pytest.raises(InvalidInput) as refused:
        load(path, "mixkv")
    said = "the profile '{}' does not exist" if kind == "missing" else "{} is not a profile: "
    assert said.format(path) in str(refused.value)


@pytest.mark.parametrize("changes", [{"model": ...}, {"by_layer": ...}, {"heads": 2}])
def test_missing_and_unknown_keys_are_refused_by_name(written, changes):
    path = written(**changes)
    with pytest.raises(InvalidInput) as refused:
        load(path, "prefixkv")
    assert f"{path} is not a profile: " in str(refused.value)
    assert repr(next(iter(changes))) in str(refused.value)


@pytest.mark.parametrize("layers", [0, 2, 4, -3])
def test_a_number_of_layers_that_does_not_fit_the_list_is_refused(written, layers):
    with pytest.raises(InvalidInput, match=f"says {layers} layers and lists 3"):
        load(written(layers=layers), "prefixkv")


@pytest.mark.parametrize(
    "changes",
    [{"schema": 1}, {"model": ...}, {"heads": 2}, {"layers": 2}, {"method": "mixkv"}, "text"],
    ids=str,
)
def test_every_file_that_is_refused_tells_how_to_make_a_good_one(written, tmp_path, changes):
    path = unreadable(tmp_path, "text") if changes == "text" else written(**changes)
    with pytest.raises(FoveateError, match="foveate calibrate prefixkv"):
        load(path, "prefixkv")


@pytest.mark.parametrize(
    "by_layer",
    [
        5,
        None,
        {"0": 0.3, "1": 0.15, "2": 0.15},
        ["a", "b", "c"],
        "abc",
        [0.3, None, 0.15],
        [0.3, math.nan, 0.15],
        [0.3, [0.15], 0.15],
        [0.3, 10**400, 0.15],
        [0.3, -0.1, 0.15],
        [0.3, True, 0.15],
        [[], [], []],
    ],
    ids=str,
)
def test_what_is_no_list_of_numbers_is_refused(written, by_layer):
    path = written(by_layer=by_layer)
    with pytest.raises(InvalidInput, match="written"), unchecked():
        load(path, "prefixkv")


def test_a_policy_reads_its_profile_when_it_is_made(tmp_path):
    missing = str(tmp_path / "missing.json")
    for method in (foveate.mixkv, foveate.prefixkv):
        with pytest.raises(InvalidInput, match=r"the profile '.*missing\.json' does not exist"):
            method(budget="20%", profile=missing)


# ------------------------------------------------------------------- whom it belongs to


def test_a_profile_of_another_method_is_refused(tmp_path):
    of_prefixkv = str(ratios().save(tmp_path / "prefixkv.json"))
    of_mixkv = str(redundancies().save(tmp_path / "mixkv.json"))
    with pytest.raises(ProfileMismatch, match="a profile of prefixkv, not of mixkv"):
        foveate.mixkv(budget="20%", profile=of_prefixkv)
    with pytest.raises(ProfileMismatch, match="a profile of mixkv, not of prefixkv"):
        foveate.prefixkv(budget="20%", profile=of_mixkv)


def assert_way_out(refused, method):
    text = str(refused.value)
    assert text.endswith(
        f"Make one with 'foveate calibrate {method} --model MODEL', or leave profile out."
    )
    return text


def test_another_model_is_refused():
    ratios().check_model("some-model")
    with pytest.raises(ProfileMismatch) as refused:
        ratios().check_model("another-model")
    text = assert_way_out(refused, "prefixkv")
    assert "prefixkv profile is of the model 'some-model', not of 'another-model'" in text


def test_another_number_of_layers_is_refused():
    redundancies().check_layers(3)
    for depth in (2, 4):
        with pytest.raises(ProfileMismatch) as refused:
            redundancies().check_layers(depth)
        text = assert_way_out(refused, "mixkv")
        assert "'some-model' with 3 layers" in text
        assert f"and {depth} layers are to be compressed" in text


@pytest.mark.parametrize("budget", ["30%", 0.3, 20, "64MB"])
def test_another_budget_is_refused(tmp_path, budget):
    path = str(ratios().save(tmp_path / "profile.json"))
    with pytest.raises(ProfileMismatch) as refused:
        foveate.prefixkv(budget=budget, profile=path)
    text = assert_way_out(refused, "prefixkv")
    printed = "30%" if budget == 0.3 else str(budget)
    assert f"made at the budget 20%, not {printed}." in text
    with pytest.raises(ProfileMismatch, match="20%, not"):
        foveate.prefixkv(budget="20%", profile=path).but(budget=budget)


@pytest.mark.parametrize("budget", ["20%", 0.2, "0.2", "20.0%"])
def test_the_same_budget_may_be_written_in_other_ways(tmp_path, budget):
    path = str(ratios().save(tmp_path / "profile.json"))
    assert foveate.prefixkv(budget=budget, profile=path).budget.calibrated == ratios()


@pytest.mark.parametrize("budget", ["20%", 64, 0.7])
def test_redundancies_hold_at_every_budget(tmp_path, budget):
    path = str(redundancies().save(tmp_path / "profile.json"))
    assert foveate.mixkv(budget=budget, profile=path).score.calibrated == redundancies()


@pytest.mark.parametrize("profile", [ratios(), redundancies()], ids=["prefixkv", "mixkv"])
def test_tensors_of_another_number_of_layers_are_refused(tmp_path, profile):
    path = str(profile.save(tmp_path / "profile.json"))
    policy = foveate.policy(f"{profile.method}:budget=20%", profile=path)
    policy = policy.but(window=2) if profile.method == "mixkv" else policy
    foveate.compress_tensors(policy, prompt([20], depth=3).layers)
    for depth in (2, 4):
        with pytest.raises(ProfileMismatch, match=f"and {depth} layers"):
            foveate.compress_tensors(policy, prompt([20], depth=depth).layers)


@pytest.mark.parametrize(
    ("by_layer", "heads"),
    [(REDUNDANCIES, 1), (REDUNDANCIES, 3), ([[0.1], [0.2], [0.3]], 2), (RATIOS, 2)],
    ids=["2 of 1", "2 of 3", "1 of 2", "none of 2"],
)
def test_tensors_of_another_number_of_heads_are_refused(tmp_path, by_layer, heads):
    path = str(redundancies(by_layer=by_layer).save(tmp_path / "profile.json"))
    layers = prompt([20], h=heads, depth=3).layers
    with pytest.raises(FoveateError, match="foveate calibrate mixkv"):
        foveate.compress_tensors(foveate.mixkv(budget="20%", window=2, profile=path), layers)


def test_a_layer_whose_heads_it_lacks_is_named_by_the_models_index_and_looked_up_by_its_place():
    profile = redundancies(by_layer=[[0.1, 0.2], [0.3], [0.1, 0.2]])
    layer = replace(layers_of(prompt([20], h=2, depth=2).layers)[1], model_index=7)
    with pytest.raises(ProfileMismatch, match="has 1 numbers for layer 7, which has 2 KV heads"):
        profile.check_heads(layer)
    profile.check_heads(replace(layer, ordinal=2))


# ------------------------------------------------------------------- what is measured


def test_the_mean_is_taken_number_by_number():
    assert mean([[0.25, 0.5], [0.75, 0.5], [0.5, 2.0]]) == [0.5, 1.0]
    assert mean([[[0.0, 1.0], [0.5, 0.5]], [[1.0, 0.5], [0.5, 0.0]]]) == [[0.5, 0.75], [0.5, 0.25]]
    assert mean([[0.1, 0.2]]) == [0.1, 0.2]


def test_the_mean_of_many_loses_no_precision():
    samples = [[1 / 3 + i * 1e-9] for i in range(1000)]
    assert mean(samples)[0] == pytest.approx(1 / 3 + 499.5e-9, rel=0, abs=1e-15)
    assert all(type(number) is float for number in mean(samples))


def test_two_papers_can_be_calibrated_and_one_depends_on_the_budget():
    assert CALIBRATIONS["prefixkv"].at_a_budget
    assert not CALIBRATIONS["mixkv"].at_a_budget
    with pytest.raises(
        InvalidParameter,
        match=r"snapkv has nothing to calibrate\. Known: expected_attention, fast_kvzip, kvzap, ",
    ):
        calibrated_method(foveate.snapkv(budget=50))
    assert calibrated_method(foveate.policy("snapkv+prefixkv:budget=50")) == "prefixkv"
    with pytest.raises(InvalidParameter, match="more than one method to calibrate: mixkv and pre"):
        calibrated_method(foveate.policy("mixkv+prefixkv:budget=50"))


def test_ratios_and_redundancies_are_read_off_a_run():
    run = Run(
        kept=[torch.tensor([[2, 4], [5, 5]]), torch.tensor([[8, 8], [10, 10]])],
        lengths=torch.tensor([10, 20]),
        notes=[
            {"redundancy": torch.tensor([[0.0, 0.5], [0.5, 1.0]])},
            {"redundancy": torch.tensor([[0.25, 0.0], [0.25, 0.0]])},
        ],
    )
    first, second = (0.2 + 0.4 + 0.25 + 0.25) / 4, (0.8 + 0.8 + 0.5 + 0.5) / 4
    assert CALIBRATIONS["prefixkv"].read(run) == pytest.approx([first, second])
    assert CALIBRATIONS["mixkv"].read(run) == [[0.25, 0.75], [0.25, 0.0]]


@pytest.mark.parametrize(
    "changes", [{"layers": 3.0}, {"layers": True}, {"model": 7}, {"budget": None}, {"samples": "1"}]
)
def test_a_field_of_another_type_is_refused_by_name(written, changes):
    ((field, value),) = changes.items()
    with pytest.raises(InvalidInput, match=f"its {field} is no .*, but {re.escape(repr(value))}"):
        load(written(**changes), "prefixkv")


def test_scores_that_are_all_zero_share_out_nothing(tmp_path):
    path = Profile(
        method="headkv", model="", layers=2, samples=1, budget="", by_layer=[[0.0, 0.0], [0.0, 0.0]]
    ).save(tmp_path / "heads.json")
    with pytest.raises(InvalidInput, match="has no head score above 0"):
        foveate.headkv(budget="10%", profile=str(path))


GOOD = (
    b'{"schema": "foveate-profile-1", "method": "mixkv", "model": "", "layers": 1, "samples": 1, '
)
GOOD += b'"budget": "", "by_layer": [[0.5, 0.25]]}'


@fuzzed
@given(
    at=st.integers(0, len(GOOD)),
    gone=st.integers(0, 20),
    new=st.binary(max_size=4)
    | st.sampled_from(
        [b"NaN", b"1e999", b"9" * 5000, b"[" * 9000, b"\xef\xbb\xbf", b"-0", b"true"]
    ),
)
@example(at=0, gone=0, new=b"\xef\xbb\xbf")
@example(at=0, gone=len(GOOD), new=b"[" * 100_000)
def test_a_damaged_file_is_a_profile_or_refused_by_name(tmp_path, at, gone, new):
    path = tmp_path / f"{at}-{gone}-{hash(new)}.json"
    path.write_bytes(GOOD[:at] + new + GOOD[at + gone :])
    try:
        with unchecked():
            found = load(str(path), "mixkv")
    except (InvalidInput, ProfileMismatch) as error:
        refused = str(error)
    else:
        assert isinstance(found.by_layer, list)
        refused = str(path)
    assert str(path) in refused
