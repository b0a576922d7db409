"""Results handed on are whole or refused, and only what belongs together is averaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate.errors import InvalidInput
from foveate_lab.eval.bundle import read_bundle, read_bundles, seal
from foveate_lab.eval.results import MANIFEST, ROWS, Results
from foveate_lab.report.merging import parts
from foveate_lab.report.page import page

SETTINGS = {"model": "tiny", "protocol": "query-aware", "seed": 0, "versions": {"foveate": "1"}}
SNAPKV, MIXKV = "snapkv:budget=20%", "mixkv:budget=20%"


def row(spec: str, sample: int, **more: Any) -> dict[str, Any]:
    return {
        "task": "document",
        "sample": str(sample),
        "spec": spec,
        "question": f"asked {sample}",
        "prediction": "x",
        "score": float(sample % 2),
        "kl": 0.5,
        "nll": 1.0,
        "agreement": 0.75,
        "kv_bytes": 20,
        "kv_bytes_full": 100,
        **more,
    }


def bundle(
    folder: Path, specs: tuple[str, ...], samples: int = 4, more: Any = None, **settings: Any
) -> Path:
    """A sealed folder with the full cache's answers and those of the specs."""
    with Results(folder, {**SETTINGS, **settings}, resume=False) as results:
        for spec in ("full", *specs):
            for sample in range(samples):
                results.add(row(spec, sample, **(more or {})))
        seal(folder, results.rows)
    return folder


def test_a_bundle_says_what_is_in_it_and_what_made_it(tmp_path: Path) -> None:
    found = read_bundle(bundle(tmp_path / "one", (SNAPKV,))).manifest
    assert found is not None
    assert (found["rows"], found["refused"], found["questions"]) == (8, 0, {"document": 4})
    assert found["specs"] == ["full", SNAPKV]
    assert found["hardware"]["processor"]
    assert found["hardware"]["threads"] > 0
    assert set(found["versions"]) == {"python", "foveate", "torch", "transformers"}


def cut_short(folder: Path) -> None:
    (folder / ROWS).write_bytes((folder / ROWS).read_bytes()[:-40])


def better_score(folder: Path) -> None:
    text = (folder / ROWS).read_text()
    (folder / ROWS).write_text(text.replace('"score": 0.0', '"score": 1.0', 1))


def another_model(folder: Path) -> None:
    text = (folder / "run.json").read_text()
    (folder / "run.json").write_text(text.replace("tiny", "huge"))


def other_hardware(folder: Path) -> None:
    found = json.loads((folder / MANIFEST).read_text())
    found["hardware"]["processor"] = "a faster one"
    (folder / MANIFEST).write_text(json.dumps(found))


def no_rows(folder: Path) -> None:
    (folder / ROWS).unlink()


def of_the_future(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace("foveate-bundle-1", "foveate-bundle-9"))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (cut_short, "rows.jsonl' has .* bytes where the manifest says"),
        (better_score, "rows.jsonl' has as many bytes as the manifest says, but other contents"),
        (another_model, "run.json' has as many bytes"),
        (other_hardware, "bundle.json' was changed after it was written"),
        (no_rows, "rows.jsonl' has no bytes where"),
        (of_the_future, "Read it with the version that wrote it"),
    ],
)
def test_what_is_not_as_its_manifest_says_is_refused(tmp_path: Path, spoil: Any, said: str) -> None:
    folder = bundle(tmp_path / "one", (SNAPKV,))
    spoil(folder)
    with pytest.raises(InvalidInput, match=said):
        page(folder)


def test_going_on_with_results_takes_their_manifest_away(tmp_path: Path) -> None:
    folder = bundle(tmp_path / "one", ())
    with Results(folder, SETTINGS, resume=True) as results:
        assert not (folder / MANIFEST).exists()
        results.add(row(SNAPKV, 0))
        assert read_bundle(folder).manifest is None
        seal(folder, results.rows)
    assert read_bundle(folder).manifest["rows"] == 5


def test_parts_of_one_run_are_put_together(tmp_path: Path) -> None:
    one, two = bundle(tmp_path / "one", (SNAPKV,)), bundle(tmp_path / "two", (MIXKV,))
    (whole,) = parts([read_bundle(one), read_bundle(two)])
    assert len(whole.rows) == 12
    text = page(one, two)
    assert text.count("<h1>") == 1
    assert text.count("4 of 4") == 3
    assert text.count("complete, by its manifest") == 2


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"more": {"question": "another"}}, "question 0 of task document is another one"),
        ({"samples": 3}, "of task document it has 3 questions, the other 4"),
        ({"more": {"prediction": "y"}}, "8 of its answers are not the other's, first that of full"),
        ({"versions": {"foveate": "2"}}, "it is of foveate 2, the other of 1"),
        ({"model": "huge"}, ""),
        ({"protocol": "query-agnostic"}, ""),
    ],
)
def test_others_stand_beside_and_are_in_no_common_mean(
    tmp_path: Path, other: dict[str, Any], why: str
) -> None:
    one = bundle(tmp_path / "one", (SNAPKV,))
    two = bundle(tmp_path / "two", (SNAPKV,), **other)
    found = parts([read_bundle(one), read_bundle(two)])
    assert [len(part.rows) for part in found] == [8, 2 * other.get("samples", 4)]
    assert why in found[1].why
    assert bool(why) == bool(found[1].why)
    text = page(one, two)
    assert text.count("<h1>") == 3  # beside each other, and each
    assert ("Not joined with" in text) == bool(why)
    beside = text.partition("<h1><bdi>A: one")[0]
    assert beside.count(SNAPKV) == 1
    assert beside.count(f", of {other.get('samples', 4)}<") >= 2


def test_a_folder_of_reproductions_is_all_of_its_models(tmp_path: Path) -> None:
    for model in ("a", "b"):
        bundle(tmp_path / "rows" / model, (), model=model)
    assert [one.folder.name for one in read_bundles(tmp_path)] == ["a", "b"]


def test_the_command_takes_several_folders(tmp_path: Path) -> None:
    one, two = bundle(tmp_path / "one", (SNAPKV,)), bundle(tmp_path / "two", (MIXKV,))
    done = CliRunner().invoke(app, ["report", str(one), str(two)])
    assert done.stdout.startswith(f"{one / 'report.html'}: ")
    cut_short(two)
    refused = CliRunner().invoke(app, ["report", str(one), str(two)])
    assert refused.exit_code == 2
    assert "cut short or changed" in refused.output.replace("\n", " ")
