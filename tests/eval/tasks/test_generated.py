"""Tasks of real text, drawn pages and photographs: the same again, shown by their evidence."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageChops

from foveate.errors import InvalidInput, InvalidParameter, MissingPackage
from foveate.loading.model import Loaded
from foveate.prompts.sample import Sample
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.tasks import find_task
from foveate_lab.eval.tasks.scene_text import PHOTOGRAPHS, photograph

NAMES = (
    "text_needle",
    "spot_the_difference",
    "description",
    "scene_text",
    "pages(pages=2/3)",
    "passing_pages(pages=3,distance=0/2)",
)


@pytest.fixture
def photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of that name with files of those names."""
    data = tmp_path / "skimage" / "data"
    data.mkdir(parents=True)
    (tmp_path / "skimage" / "__init__.py").touch()
    for i, name in enumerate(PHOTOGRAPHS):
        Image.linear_gradient("L").resize((300 + i, 500)).save(data / name)
    monkeypatch.delitem(sys.modules, "skimage", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    photograph.cache_clear()
    yield data
    photograph.cache_clear()


def samples(name: str, count: int = 12, seed: int = 0) -> list[Sample]:
    return list(find_task(name).samples(count, seed))


def content(sample: Sample) -> tuple[object, ...]:
    return (
        sample.text,
        sample.answers,
        sample.evidence,
        tuple(image.tobytes() for image in sample.images),
    )


@pytest.mark.parametrize("name", NAMES)
def test_samples_follow_from_the_seed_alone(name: str, photographs: Path) -> None:
    one = [content(sample) for sample in samples(name)]
    assert one == [content(sample) for sample in samples(name)]
    assert one[:5] == [content(sample) for sample in samples(name, 5)]
    assert one != [content(sample) for sample in samples(name, seed=1)]
    assert len(set(one)) == len(one)


@pytest.mark.parametrize("name", NAMES)
def test_the_right_answer_is_right_and_every_cache_can_be_asked(
    name: str, photographs: Path, loaded: Loaded
) -> None:
    task, found = find_task(name), samples(name, 6)
    for one, other in zip(found, found[1:] + found[:1], strict=True):
        assert all(task.metric(answer, one) == pytest.approx(1, abs=1e-6) for answer in one.answers)
        assert task.metric("", one) == 0
        if set(one.answers).isdisjoint(other.answers):
            assert (task.metric(other.answers[0], one) or 0) < 1
    brief = replace(task, longest=8)
    rows = list(measured(loaded, brief, found[0], ["oracle:budget=60%"], "query-aware"))
    assert all(row["kl"] is not None and row["rouge_full"] is not None for row in rows)
    assert (rows[1]["reference_nll"] is not None) == (name == "description")


@pytest.mark.parametrize(("name", "words"), [("text_needle", 90), ("text_needle_long", 2000)])
def test_a_needle_stands_once_anywhere_in_real_text(name: str, words: int) -> None:
    from pydoc_data.topics import topics

    whole = " ".join(word for topic in sorted(topics) for word in topics[topic].split())
    depths = []
    for sample in samples(name, 20):
        (span,) = sample.evidence
        assert sample.context.count(span.text) == 1
        assert span.image is None
        assert span.text.endswith(f": {sample.answers[0]}")
        before, after = (part.strip() for part in sample.context.split(span.text))
        assert f"{before} {after}".strip() in whole
        assert len(before.split()) + len(after.split()) == words
        depths.append(sample.facts["depth"])
    assert min(depths) < 0.2
    assert max(depths) > 0.8


def test_two_pages_differ_where_the_evidence_is_and_nowhere_else() -> None:
    for sample in samples("spot_the_difference"):
        a, b = sample.images
        where = ImageChops.difference(a, b).convert("L").point(lambda v: 255 * (v > 40)).getbbox()
        assert where is not None
        first, second = sample.evidence
        assert first.box == second.box
        assert first.box[1] <= where[1] + 8
        assert where[3] - 8 <= first.box[3]
        texts = [f"{sample.answers[0]}: {value}" for value in sample.facts["values"]]
        assert [first.text, second.text] == texts
        assert texts[0] != texts[1]


def test_a_description_is_every_line_and_nothing_is_on_other_rows() -> None:
    for sample in samples("description"):
        lines = sample.answers[0].split("\n")
        assert lines == [span.text for span in sample.evidence]
        assert 3 <= len(lines) <= 7
        tops = [span.box[1] for span in sample.evidence]
        assert tops == sorted(set(tops))


def test_the_sign_is_where_the_evidence_is(photographs: Path) -> None:
    for sample in samples("scene_text"):
        (span,) = sample.evidence
        assert sample.images[0].size == (384, 240)
        plain = [np.asarray(photograph(name)).astype(int) for name in PHOTOGRAPHS]
        seen = np.asarray(sample.images[0]).astype(int)
        least = min((np.abs(seen - one).sum(-1) for one in plain), key=lambda one: one.sum())
        rows, columns = np.nonzero(least)
        left, top, right, bottom = span.box
        assert rows.min() >= top
        assert rows.max() <= bottom
        assert columns.min() >= left
        assert columns.max() <= right
        assert span.text == sample.answers[0]


def test_photographs_that_are_not_there_are_named(
    photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PHOTOGRAPHS:
        (photographs / name).write_bytes(b"no image")
    with pytest.raises(InvalidInput, match="has no photograph"):
        samples("scene_text")
    monkeypatch.setattr("foveate_lab.eval.tasks.scene_text.find_spec", lambda name: None)
    with pytest.raises(MissingPackage, match=r"foveate\[photos\]"):
        samples("scene_text")


def test_the_page_asked_for_stands_where_the_labels_say() -> None:
    for sample in samples("pages(pages=4/9,place=0/33/100)"):
        pages, place = sample.labels["pages"], sample.labels["place"]
        assert len(sample.images) == pages
        assert sample.evidence[0].image == {0: 0, 33: pages // 3, 100: pages - 1}[place]
    for sample in samples("passing_pages(pages=6,distance=0/4)"):
        assert len(sample.images) == 6
        assert sample.evidence[0].image == 5 - sample.labels["distance"]
    labels = [tuple(sample.labels.values()) for sample in samples("pages(pages=4/9,place=0/100)")]
    assert labels == [(4, 0), (4, 100), (9, 0), (9, 100)] * 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pages(pages=1/4)", "pages='1/4': give whole numbers from 2 to 54"),
        ("pages(place=0/x)", "place='0/x': give whole numbers up to 100"),
        ("passing_pages(pages=4,distance=4)", "after one of 4 pages come 3 at most"),
        ("pages(depth=4)", "pages has no option 'depth'. Known: "),
    ],
)
def test_options_of_drawn_tasks_are_checked(name: str, said: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        samples(name)
    assert said in str(caught.value)
    with pytest.raises(InvalidInput, match="is generated, not read from a folder"):
        find_task("pages=/data/pages")
