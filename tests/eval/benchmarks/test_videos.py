"""Benchmarks with videos: which part is seen, what is right, and a clip that is not there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from foveate.errors import InvalidInput, InvalidParameter
from foveate.loading.model import Loaded
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.benchmarks import BENCHMARKS
from foveate_lab.eval.metrics.choices import letter
from foveate_lab.eval.tasks import find_task
from tests.eval.benchmarks.conftest import samples
from tests.eval.benchmarks.published import FORMS, Writes
from tests.videos import numbers

DATA = ("videomme", "mlvu", "lvbench", "ovo_bench", "streaming_bench")
ONE_EACH = {task: name for task, name in FORMS if BENCHMARKS[task].data in DATA}


@pytest.mark.parametrize(
    ("said", "chosen"),
    [
        ("B", "B"),
        ("(b)", "B"),
        ("B. blue", "B"),
        ("The answer is: C", "C"),
        ("First I thought the answer is A. No: the correct option is (D).", "D"),
        ("It is blue, so (B)", "B"),
        ("A man walks", ""),
        ("Because he is late", ""),
        ("", ""),
    ],
)
def test_a_letter_is_found_and_never_guessed(said: str, chosen: str) -> None:
    assert letter(said) == chosen


@pytest.mark.parametrize("task", ONE_EACH)
def test_frames_are_asked_of_a_model(task: str, tmp_path: Path, loaded: Loaded) -> None:
    FORMS[task, ONE_EACH[task]](Writes(tmp_path))
    found = find_task(f"{task}(frames=2,longest=4)={tmp_path}")
    (sample, *_) = samples(found)
    assert found.metric(sample.answers[0], sample) == 1
    rows = list(measured(loaded, found, sample, ["knorm:budget=50%"], "query-agnostic"))
    assert [row.get("error") for row in rows] == [None, None]
    assert {row["visual_tokens"] for row in rows} == {2 * 9}
    (row, *_) = measured(loaded, found, sample, [], "query-aware", longest_prompt=20)
    assert "sample fewer frames" in row["error"]["message"]


def test_what_is_seen_ends_at_the_question(tmp_path: Path) -> None:
    FORMS["streaming_bench_real", "the authors"](Writes(tmp_path))
    for options, first in (("fps=2", 0), ("fps=2,context=1", 10), ("fps=2,context=null", 0)):
        (sample,) = samples(find_task(f"streaming_bench_real({options})={tmp_path}"))
        assert numbers(sample.videos[0].clip.frames) == list(range(first, 21, 5))
    with pytest.raises(InvalidParameter, match="fps=2 and frames=3 exclude each other"):
        print(samples(find_task(f"streaming_bench_real(fps=2,frames=3)={tmp_path}"))[0].digest)


def test_moments_of_one_video_are_questions_of_their_own(tmp_path: Path) -> None:
    write = Writes(tmp_path)
    both = [{"realtime": 1, "type": 0}, {"realtime": 2, "type": 1}]
    counts = [{"realtime": 1, "count": 3}, {"realtime": 2, "count": 12}]
    write.json(
        "ovo_bench_new.json",
        [
            {"id": 1, "task": "CRR", "video": "v.mp4", "question": "?", "test_info": both},
            {"id": 2, "task": "REC", "video": "v.mp4", "activity": "jump", "test_info": counts},
            {"id": 3, "task": "EPM", "video": "v.mp4", "question": "?"},
        ],
    )
    write.video("src_videos/v.mp4")
    task = find_task(f"ovo_bench_forward={tmp_path}")
    found = samples(task)
    assert [(one.name, one.answers[0]) for one in found] == [
        ("1_0", "No"),
        ("1_1", "Yes"),
        ("2_0", "3"),
        ("2_1", "12"),
    ]
    assert [one.videos[0].end for one in found] == [1, 2, 1, 2]
    assert [task.metric(said, found[1]) for said in ("Yes.", "Y", "No")] == [1, 1, 0]
    assert [task.metric(said, found[3]) for said in ("12 times", "1 or 2", "3")] == [1, 1, 0]


def test_a_clip_that_is_not_there_and_a_broken_one_are_named(
    tmp_path: Path, loaded: Loaded
) -> None:
    FORMS["videomme", "lmms-lab"](Writes(tmp_path))
    task, clip = find_task(f"videomme={tmp_path}"), tmp_path / "data/v.mp4"
    clip.write_bytes(b"no video")
    (row,) = measured(loaded, task, samples(task)[0], [], "query-aware")
    assert "v.mp4' cannot be read as a video" in row["error"]["message"]
    clip.unlink()
    missing = re.escape(f"{str(tmp_path)!r} holds no data/v.mp4 or data/v.MP4")
    with pytest.raises(InvalidInput, match=f"row 0: {missing}"):
        samples(task)
