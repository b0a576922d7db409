"""Every form in which a data set is published is read, and what is no such form is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from foveate.data import Folder
from foveate.errors import InvalidInput
from foveate_lab.eval.benchmarks import BENCHMARKS
from foveate_lab.eval.tasks import find_task
from tests.eval.benchmarks.conftest import samples
from tests.eval.benchmarks.published import FORMS, Writes

ONE_EACH = dict(FORMS.keys())


def test_every_data_set_is_written_in_every_form_by_all_who_publish_it(tmp_path: Path) -> None:
    written: dict[str, set[str]] = {}
    for number, ((task, _), write) in enumerate(FORMS.items()):
        by = write(Writes(tmp_path / str(number))).form
        written.setdefault(BENCHMARKS[task].data, set()).add(by)
    published: dict[str, set[str]] = {}
    for one in BENCHMARKS.values():
        for sources in one.parts().values():
            by = {source.publisher for source in sources.sources}
            published.setdefault(one.data, set()).update(by)
    assert written == published


@pytest.mark.parametrize(("task", "name"), FORMS, ids=lambda one: str(one))
def test_it_is_read_in_this_form(task: str, name: str, tmp_path: Path) -> None:
    expected = FORMS[task, name](Writes(tmp_path))
    found = samples(find_task(f"{task}={tmp_path}"))
    assert (found[0].name, found[0].answers) == (expected.name, expected.answers)
    for image in found[0].images:
        red, green, blue = image.getpixel((3, 3))
        assert red > 240 > 20 > max(green, blue)
    for video in found[0].videos:
        assert len(video.clip) == (21 if video.end == 2 else 30)  # of ten a second
    (sources,) = BENCHMARKS[task].parts().values()
    chosen = sources.chosen(Folder(tmp_path))
    assert (chosen.source.publisher, chosen.source.count(chosen.paths)) == (
        expected.form,
        expected.count,
    )
    if task != "needle_grid":
        assert len(found) == expected.count


@pytest.mark.parametrize("task", [one for one in ONE_EACH if one != "needle_grid"])
def test_another_data_sets_folder_is_recognised(task: str, tmp_path: Path) -> None:
    FORMS[task, ONE_EACH[task]](Writes(tmp_path))
    other = "docvqa" if task != "docvqa" else "textvqa"
    with pytest.raises(InvalidInput, match=rf"{other}: .* holds \S+ of .* another data set"):
        samples(find_task(f"{other}={tmp_path}"))


@pytest.mark.parametrize(
    ("there", "says"),
    [
        ("spdocvqa_images.tar.gz", "Not unpacked: spdocvqa_images.tar.gz. Unpack it"),
        (".cache/huggingface/download/a.incomplete", r"A download is incomplete: .*a.incomplete"),
        ("README.md", "holds no DocVQA: there is README.md, and it has to hold val_v1.0"),
    ],
)
def test_what_there_is_instead_of_data_is_said(there: str, says: str, tmp_path: Path) -> None:
    Writes(tmp_path).file(there).write_bytes(b"x")
    with pytest.raises(InvalidInput, match=says):
        samples(find_task(f"docvqa={tmp_path}"))


def test_archives_of_images_and_pointers_are_said(tmp_path: Path) -> None:
    writes = Writes(tmp_path)
    FORMS["screenspot_v2", "the authors"](writes)
    (image,) = tmp_path.glob("*/mobile_a.png")
    image.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n")
    task = find_task(f"screenspot_v2={tmp_path}")
    with pytest.raises(InvalidInput, match=r"mobile_a.png' is a pointer of Git LFS"):
        samples(task)
    image.unlink()
    writes.file("screenspotv2_image.zip").write_bytes(b"PK")
    with pytest.raises(InvalidInput, match=r"holds no .*Not unpacked: screenspotv2_image.zip"):
        samples(task)


def test_two_splits_of_which_none_is_asked_and_half_a_split_are_refused(tmp_path: Path) -> None:
    writes = Writes(tmp_path)
    for split in ("train", "val"):
        writes.json(f"{split}_human.json", [])
        writes.json(f"{split}_augmented.json", [])
    task = find_task(f"chartqa={tmp_path}")
    with pytest.raises(InvalidInput, match=r"holds the splits val and train, and not test"):
        samples(task)
    writes.json("test_human.json", [])
    with pytest.raises(InvalidInput, match=r"holds no test_augmented.json beside test_human.json"):
        samples(task)
    for name in ("val_v1.0.json", "val_v1.0_withQT.json"):
        writes.json(f"documents/{name}", {})
        writes.json(name, {})
    with pytest.raises(InvalidInput, match=r"holds both val_v1.0.json and val_v1.0_withQT.json"):
        samples(find_task(f"docvqa={tmp_path}"))


def test_a_kind_of_question_that_no_record_says_is_refused(tmp_path: Path) -> None:
    FORMS["loogle_longdep_qa", "the hub today"](Writes(tmp_path))
    with pytest.raises(InvalidInput, match=r"no question that says its kind"):
        samples(find_task(f"loogle_longdep_qa(kind=computation)={tmp_path}"))
