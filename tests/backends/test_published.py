"""Files as PrefixKV's, MixKV's and SparseMM's authors publish them make profiles."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import foveate
from foveate.cli.app import app
from foveate.errors import InvalidInput
from tests import zoo
from tests.zoo.directory import save_llava

FORGOTTEN = [0.28, 0.43, 0.79]  # of three layers: half is kept
KEYS = {f"{i}-{j}-key": [0.1 * (i + j), 0.1 * (i + j) + 0.2] for i in range(3) for j in range(2)}
VALUES = {name.replace("key", "value"): [0.0] for name in KEYS}


def written(path, found):
    path.write_text(found if isinstance(found, str) else json.dumps(found))
    return path


def imported(spec, path):
    return foveate.import_profile(zoo.build("llama"), spec, path)


def test_layers_keep_what_prefixkvs_configuration_does_not_forget(tmp_path):
    path = written(tmp_path / "prefixkv_llava-v1.5-7b_0.5.json", FORGOTTEN)
    profile = imported("prefixkv:budget=50%", path)
    assert profile.by_layer == pytest.approx([0.72, 0.57, 0.21])
    assert (profile.method, profile.layers, profile.budget) == ("prefixkv", 3, "50%")
    saved = profile.save(tmp_path / "profile.json")
    with foveate.compress(zoo.build("llama"), f"prefixkv:budget=50%,profile={saved}") as session:
        session.prefill(**zoo.prompt("llama", lengths=(40,)))
        assert [float(kept[0, 0]) / 40 for kept in session.stats.kept] == pytest.approx(
            profile.by_layer, abs=0.03
        )


@pytest.mark.parametrize("samples", [2, 1])
def test_heads_have_the_redundancies_of_mixkvs_tables(tmp_path, samples):
    means = [[0.1 * (i + j) + 0.1 for j in range(2)] for i in range(3)]
    path = written(tmp_path / "table.json", KEYS | VALUES if samples == 2 else means)
    profile = foveate.import_head_scores(zoo.build("llama"), "mixkv", path)
    assert [x for row in profile.by_layer for x in row] == pytest.approx(
        [x for row in means for x in row]
    )
    assert (profile.method, profile.samples) == ("mixkv", samples)
    saved = profile.save(tmp_path / "profile.json")
    with foveate.compress(zoo.build("llama"), f"mixkv:budget=20,window=4,profile={saved}") as one:
        one.prefill(**zoo.prompt("llama", lengths=(40,)))
        assert one.stats.kept_tokens == 20


@pytest.mark.parametrize(
    ("spec", "found", "says"),
    [
        ("prefixkv:budget=20%", FORGOTTEN, r"keeps 50.0% of a prompt, and the budget is 20%"),
        ("prefixkv:budget=256", FORGOTTEN, r"and the budget is 256"),
        ("prefixkv:budget=50%", [*FORGOTTEN[:2], 0.7, 0.5], r"of 4 layers, and .* has 3"),
        ("prefixkv:budget=50%", {"0": 0.5}, "holds no shares of layers; expected a JSON list"),
        ("prefixkv:budget=50%", [0.5, 1.0, 0.5], "holds no shares of layers"),
        ("prefixkv:budget=50%", [0.5, "a", 0.5], "holds no shares of layers"),
        ("snapkv:budget=50%", FORGOTTEN, "no published file format is known for 'snapkv'"),
        ("mixkv", FORGOTTEN, "holds no redundancies of heads; expected a JSON object"),
        ("mixkv", {"0-1-key": [0.5]}, "holds no redundancies of heads"),
        ("mixkv", {"0-0": [0.5]}, "holds no redundancies of heads"),
        ("mixkv", [[0.5, 7.0]], "holds no redundancies of heads"),
        ("mixkv", [[0.5, 0.7]], "scores of 1 layers with 2 KV heads"),
        ("mixkv", "[", "no JSON: Expecting value"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, spec, found, says):
    path = written(tmp_path / "found.json", found)
    with pytest.raises(InvalidInput, match=says):
        imported(spec, path)


def test_the_command_makes_a_profile_of_a_file(tmp_path):
    model, out = str(save_llava(tmp_path / "llava")), tmp_path / "made.json"
    path = str(written(tmp_path / "found.json", FORGOTTEN))

    def run(*more):
        given = ["calibrate", "prefixkv:budget=50%", "--from", path, "--out", str(out), *more]
        return CliRunner().invoke(app, given)

    done = run("--model", model)
    assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["by_layer"] == pytest.approx([0.72, 0.57, 0.21])
    assert "needs the model of the profile" in run().output.replace("\n", " ")
    assert "--from converts a file" in run("--model", model, "--samples", "3").output
