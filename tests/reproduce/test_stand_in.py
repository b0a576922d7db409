"""Generated folders are read by the readers of the real ones."""

from __future__ import annotations

import pytest

from foveate_lab.eval.tasks import find_task
from foveate_lab.reproduce import EXPERIMENTS
from foveate_lab.reproduce.resources import toml
from foveate_lab.reproduce.setting import folder_of
from foveate_lab.reproduce.stand_in import judge
from foveate_lab.reproduce.stand_in.folders import WRITERS, write

TASKS = sorted({task for one in EXPERIMENTS.values() for task in one.trial.tasks()})


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write(folder, 1)
    return folder


def test_every_folder_has_a_source_and_a_writer():
    assert {folder_of(task) for task in TASKS} <= set(WRITERS)
    assert set(WRITERS) == set(toml("sources"))


@pytest.mark.parametrize("task", TASKS)
def test_it_is_read(data, task):
    samples = list(find_task(f"{task}={data / folder_of(task)}").samples(1, 0))
    assert samples
    assert all(sample.answers for sample in samples)
    if not task.startswith(("longbench", "loogle", "needle")):
        assert all(sample.images for sample in samples)


def test_columns_find_the_kinds_of_samples(data):
    for name, label in (
        ("ocrbench", "type"),
        ("mm_vet", "capability"),
        ("mathvista", "skills"),
        ("mathvista", "task"),
        ("screenspot_v2", "type"),
    ):
        parts = {
            part
            for one in EXPERIMENTS.values()
            for column in getattr(one.trial, "across", ())
            if column.tasks[0].partition("(")[0] == name and column.label == label
            for part in column.part
        }
        held = set()
        for sample in find_task(f"{name}={data / name}").samples(99, 0):
            value = sample.labels[label]
            held |= set(value) if isinstance(value, list | tuple) else {value}
        assert parts & held, (name, label)


@pytest.mark.parametrize(
    ("task", "said", "score"),
    [
        ("mm_vet", "It says {}, I think.", 1.0),
        ("mm_vet", "No.", 0.0),
        ("mathvista", "So: {}.", 1.0),
    ],
)
def test_a_rule_judges(data, task, said, score):
    found = find_task(f"{task}={data / task}", judge)
    (sample,) = found.samples(1, 0)
    right = sample.answers[0].partition("<OR>")[0]
    assert found.metric(said.format(right), sample) == score
