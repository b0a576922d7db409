"""Data that is not as released: what every benchmark's reader does with it."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from foveate.cli.app import app
from foveate.errors import InvalidInput
from foveate.prompts.prompt import image_part
from foveate_lab.eval import Sample, task
from foveate_lab.eval.metrics import exact
from foveate_lab.eval.task_registry import TASKS
from foveate_lab.eval.tasks import find_task, find_tasks
from tests.eval.benchmarks.conftest import Folder, samples
from tests.eval.benchmarks.test_judged import CHOICES, problem
from tests.eval.benchmarks.test_longbench import record as long_record

ASKED = {"question_id": 7, "question": "?", "image_id": "a", "answers": ["stop"]}


@pytest.fixture
def textvqa(folder: Folder) -> Any:
    """Writes TextVQA's folder with these records."""
    return lambda *records: folder(
        ["train_images/a.jpg"], **{"TextVQA_0.5.1_val": {"data": records}}
    )


def test_samples_of_one_name_are_told_apart(textvqa: Any, folder: Folder) -> None:
    path = textvqa(ASKED, ASKED, ASKED | {"question_id": "7#2"}, ASKED)
    names = [one.name for one in samples(find_task(f"textvqa={path}"))]
    assert names == ["7", "7#2", "7#2#2", "7#3"]
    path = folder(
        [], **{"trec.jsonl": [long_record(["x"])] * 2, "dataset2prompt": {"trec": "{context}"}}
    )
    names = [one.name for one in samples(find_task(f"longbench_trec={path}"))]
    assert names == ["trec/7f", "trec/7f#2"]


def test_samples_of_a_users_own_task_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foveate_lab.eval.task_registry.TASKS", dict(TASKS))

    @task("twice", metric=exact)
    def twice(count: int, seed: int) -> Iterator[Sample]:
        yield Sample("a", "?", ("x",))
        yield Sample("a", "!", ("y",))

    assert [(one.name, one.question) for one in twice.samples(2, 0)] == [("a", "?"), ("a#2", "!")]


def test_one_key_for_two_records_is_refused(folder: Folder) -> None:
    record = json.dumps({"imagename": "a.png", "question": "?", "answer": "x", "capability": []})
    path = folder(["images/a.png"])
    (path / "mm-vet.json").write_text(f'{{"v1_0": {record}, "v1_0": {record}}}')
    with pytest.raises(InvalidInput, match=r"mm-vet.json: .* the key 'v1_0' occurs twice"):
        samples(find_task(f"mm_vet={path}"))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (
            {"answers": "stop"},
            "field 'answers' is 'stop'; it must be a list of texts, at least 1",
        ),
        ({"answers": [1]}, "the field 'answers'"),
        ({"answers": []}, r"the field 'answers' is \[\]"),
        ({"question": 5}, "the field 'question' is 5"),
        ({"question": None}, "the field 'question' is None"),
        ({"question_id": []}, "'question_id'"),
        ({"image_id": {}}, "the field 'image_id'"),
    ],
)
def test_a_field_of_another_type_is_named(textvqa: Any, made: dict[str, Any], says: str) -> None:
    path = textvqa(ASKED, ASKED | made)
    with pytest.raises(InvalidInput, match=says) as caught:
        samples(find_task(f"textvqa={path}"))
    assert f"{path}/TextVQA_0.5.1_val.json, field 'data', record 1: " in str(caught.value)


def test_captions_of_one_image_have_to_agree(folder: Folder) -> None:
    records = [{"image_id": "a", "reference_strs": [one]} for one in ("a dog", "a cat")]
    path = folder(["train_images/a.jpg"], **{"TextCaps_0.1_val": {"data": records}})
    with pytest.raises(InvalidInput, match=r"record 1: its 'reference_strs' are not those of"):
        samples(find_task(f"textcaps={path}"))


def test_a_choice_needs_choices(folder: Folder) -> None:
    made = problem(**{**CHOICES, "choices": []})
    path = folder(["images/1.jpg"], testmini={"1": made}, query={"1": "q"})
    with pytest.raises(InvalidInput, match=r"record '1': the field 'choices' is empty"):
        samples(find_task(f"mathvista={path}"))


def test_a_file_with_a_byte_order_mark_is_read(textvqa: Any) -> None:
    path = textvqa(ASKED)
    (file,) = path.glob("*.json")
    for encoding in ("utf-8-sig", "utf-16"):
        file.write_bytes(json.dumps({"data": [ASKED]}).encode(encoding))
        assert len(samples(find_task(f"textvqa={path}"))) == 1


def test_images_are_upright_and_on_white(textvqa: Any) -> None:
    path = textvqa(ASKED)
    exif = Image.Exif()
    exif[0x0112] = 8
    Image.new("LA", (40, 20), (0, 0)).save(path / "train_images" / "a.jpg", "PNG", exif=exif)
    ((image,),) = [one.images for one in samples(find_task(f"textvqa={path}"))]
    assert (image.size, image.mode, image.getpixel((0, 0))) == ((20, 40), "RGB", (255, 255, 255))
    shown = image_part(Image.new("LA", (4, 4), (0, 0)))["image"]  # of a user's own task
    assert (shown.mode, shown.getpixel((0, 0))) == ("RGB", (255, 255, 255))


@pytest.mark.parametrize("way", ["up", "link"])
def test_data_leads_nowhere_else_unless_that_is_allowed(
    textvqa: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, way: str
) -> None:
    secret = tmp_path_factory.mktemp("secret") / "a.jpg"
    Image.new("RGB", (5, 5), "blue").save(secret)
    (tmp_path / "train_images").mkdir()
    (tmp_path / "train_images" / "link.jpg").symlink_to(secret)
    name = "link" if way == "link" else f"../../{secret.parent.name}/a"
    path = textvqa(ASKED | {"image_id": name})
    with pytest.raises(InvalidInput, match=r"record 0, field 'image_id': .* leads out of"):
        samples(find_task(f"textvqa={path}"))
    (allowed,) = find_tasks(f"textvqa={path}", outside=True)
    assert samples(allowed)[0].images[0].size == (5, 5)


@pytest.mark.parametrize("kind", ["struct", "bytes", "base64", "data", "path", "struct path"])
def test_a_cell_holds_an_image_in_any_way(tmp_path: Path, kind: str) -> None:
    out = io.BytesIO()
    Image.new("RGB", (6, 5), "red").save(out, "PNG")
    held, text = out.getvalue(), base64.encodebytes(out.getvalue()).decode()
    (tmp_path / "red.png").write_bytes(held)
    cells = {
        "struct": {"bytes": held, "path": "no.png"},
        "bytes": held,
        "base64": text,
        "data": f"data:image/png;base64,{text}",
        "path": "red.png",
        "struct path": {"bytes": None, "path": "red.png"},
    }
    row = {"question_id": 1, "question": "?", "answers": ["x"], "image": cells[kind]}
    file = tmp_path / "validation-00000-of-00001.parquet"
    pq.write_table(pa.Table.from_pylist([row]), file)
    (one,) = samples(find_task(f"textvqa={tmp_path}"))
    assert (one.images[0].size, one.images[0].getpixel((0, 0))) == ((6, 5), (255, 0, 0))


@pytest.mark.parametrize("cell", ["no base64", "../../etc/passwd.png", "", "AAAA", 5])
def test_a_cell_without_an_image_is_named(tmp_path: Path, cell: Any) -> None:
    file = tmp_path / "validation-00000-of-00001.parquet"
    row = {"question_id": 1, "question": "?", "answers": ["x"], "image": cell}
    pq.write_table(pa.Table.from_pylist([row]), file)
    with pytest.raises(InvalidInput, match=r"00001.parquet, row 0, field 'image'"):
        samples(find_task(f"textvqa={tmp_path}"))


def test_the_command_line_allows_it(
    textvqa: Any, directory: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("beside")
    Image.new("RGB", (30, 30)).save(place / "a.jpg")
    path = textvqa(ASKED | {"image_id": f"../../{place.name}/a"})
    asked = [
        "eval",
        "--model",
        directory,
        "--tasks",
        f"textvqa={path}",
        "--timed",
        "0",
        "--methods",
        "snapkv:window=4",
        "--budgets",
        "50%",
    ]
    result = CliRunner().invoke(app, [*asked, "--out", str(place / "out"), "--allow-outside"])
    assert result.exit_code == 0, (result.stderr, result.exception)
