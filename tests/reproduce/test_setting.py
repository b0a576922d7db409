"""What an experiment finds in rows that it shares; and how cost is measured of little."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest

from foveate.loading.model import load
from foveate.profiles.profile import load as load_profile
from foveate_lab.bench.subject import with_ids_in_order
from foveate_lab.eval.pixels import AS_THEY_ARE, Pixels
from foveate_lab.eval.results import Results
from foveate_lab.reproduce import EXPERIMENTS
from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.published import PublishedProfile
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.stand_in import write
from foveate_lab.reproduce.task_request import TaskRequest
from foveate_lab.reproduce.trials import (
    Arm,
    Batch,
    Column,
    GridTrial,
    Latency,
    ThroughputTrial,
    columns,
)
from foveate_lab.reproduce.trials.answers import answers, calibrate, unprepared
from tests.zoo.directory import save_llava

ARMS = (Arm(name="Full", spec="full"), Arm(name="SnapKV", spec="snapkv:budget={B},window=8"))
COSTS = {
    "latency": Latency(title="t", arms=ARMS, budgets=("64", "32"), tokens=32_000, new=512),
    "batches": ThroughputTrial(
        title="t",
        batches=(Batch(name="b", model="m", tokens=1024, new=512, rows=8),),
        arms=ARMS,
        budgets=("64", "32"),
        figures="",
    ),
}


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    with Results(tmp_path / "rows", {}, resume=True) as results:
        yield Setting(
            model="m",
            location="m",
            data=tmp_path,
            results=results,
            limit=1,
            seed=0,
            small=True,
            load=lambda: load(str(save_llava(tmp_path / "llava"))),
            profiles=tmp_path,
        )


def test_rows_are_those_of_the_first_samples_of_what_is_asked(setting):
    """Others may have asked more, and another part of them."""
    for place, (task, sample, spec) in enumerate(("a1f", "a2f", "a1s", "b1f", "b2f", "c1f", "d9f")):
        at = {"place": 9} if place == 6 else {}
        setting.results.add({"task": task, "sample": sample, "spec": spec, **at})
    found = setting.rows([TaskRequest("a", 1), TaskRequest("b", 5), TaskRequest("d", 5)])
    said = {name: [row["sample"] + row["spec"] for row in rows] for name, rows in found.items()}
    assert said == {"a": ["1f", "1s"], "b": ["1f", "2f"], "d": []}


def test_a_published_file_is_read_where_it_is_brought_and_its_cells_are_empty_without(setting):
    one = PublishedProfile(
        method="prefixkv", files={"m": "conf_{F}.json"}, source="a place", at_a_budget=True
    )
    setting = replace(
        setting,
        calibrations={"theirs": one},
        load=lambda: load(str(save_llava(setting.data / "llava"))),
    )
    template = "prefixkv:budget={B},profile={theirs}"
    grid = GridTrial(
        title="t",
        arms=(Arm(name="Theirs", spec=template), Arm(name="Ours", spec="prefixkv:budget={B}")),
        across=(Column(name="c", tasks=("textvqa",)),),
        budgets=("30%",),
    )
    file = setting.data / "published" / "conf_0.7.json"
    assert setting.missing_file(template, "30%") == file
    assert [*grid.requests(setting).values()] == [{"prefixkv:budget=30%": "30%"}]
    (table,) = grid.summarise([setting])
    assert [line.cells[0].note for line in table.lines] == [f"not brought: {file}", "0 samples"]
    assert table.shrunk[-1] == "lines stay empty without published/: conf_0.7.json"
    file.parent.mkdir()
    file.write_text("[0.7, 0.8, 0.6]")
    assert not setting.missing_file(template, "30%")
    ((theirs, *_),) = grid.requests(setting).values()
    setting.calibrate({theirs: "30%"})
    assert load_profile(str(setting.profiles / "theirs-30pct.json"), "prefixkv").by_layer == [
        pytest.approx(x) for x in (0.3, 0.2, 0.4)
    ]
    assert not setting.profiles_of({theirs: "30%"})


def test_data_and_profiles_that_are_missing_leave_their_cells_empty_and_say_so(setting):
    write(setting.data, 1, ["ocrbench", "textvqa"])
    write(setting.data, 1, ["llava_instruct"])
    long = CalibrationRun(
        method="prefixkv", task="llava_instruct(min_words=5000)", at_a_budget=True
    )
    setting = replace(setting, calibrations={"long": long})
    by_profile = Arm(name="PrefixKV", spec="prefixkv:budget={B},profile={long}")
    grid = GridTrial(
        title="t",
        arms=(*ARMS, by_profile),
        across=columns({"OCRBench": "ocrbench", "DocVQA": "docvqa"}),
        budgets=("50%",),
        average="Average",
    )
    for request, specs in grid.requests(setting).items():
        calibrate(setting, unprepared(setting, {request: specs}))
        for row in answers(setting, request, specs):
            setting.results.add(row)
    (table,) = grid.summarise([setting])
    read, unread = zip(*(line.cells[:2] for line in table.lines), strict=True)
    assert [cell.measured is None for cell in read] == [False, False, True]
    assert read[2].note.startswith("no profile: llava_instruct(min_words=5000) has no prompt")
    assert all(cell.measured is None for cell in unread)
    assert all("docvqa' does not exist" in cell.note for cell in unread)
    assert {request.task: bool(why) for request, why in setting.read.items()} == {
        "ocrbench": False,
        "docvqa": True,
    }


@pytest.mark.parametrize("kind", COSTS)
def test_a_stand_in_measures_cost_of_a_short_prompt_and_says_so(setting, kind):
    trial = COSTS[kind]
    for row in trial.run(setting):
        setting.results.add(row)
    (table,) = trial.summarise([setting])
    assert [(line.method.rpartition(", ")[2], line.budget) for line in table.lines] == [
        ("Full", ""),
        ("SnapKV", "64"),
        ("SnapKV", "32"),
    ]
    measured = [cell.measured for line in table.lines for cell in line.cells]
    assert all(one is None or (isfinite(one) and one >= 0) for one in measured)
    assert sum(one is not None for one in measured) >= 6
    assert table.shrunk[0].startswith("stand-in: ")
    assert "256 tokens" in table.shrunk[0]
    assert not list(trial.run(setting))


def test_latency_is_of_token_ids_in_order_as_in_the_authors_script(setting):
    subject = with_ids_in_order(setting.load(), 1000)
    words = subject.model.get_input_embeddings().num_embeddings
    assert subject.ids.tolist() == [[number % words for number in range(1000)]]
    costs = {name: one.trial for name, one in EXPERIMENTS.items() if isinstance(one.trial, Latency)}
    assert {*costs} == {"mixkv:fig4", "mixkv:fig6", "mixkv:text-weights-cost"}
    assert {(one.tokens, one.new) for one in costs.values()} == {(32_000, 512)}


@pytest.mark.parametrize(
    ("model", "task", "pixels"),
    [
        ("qwen2-vl-7b", "ocrbench", (25_088, None, None, True)),
        ("internvl3-8b", "ocrbench", (None, None, 6, True)),
        ("internvl3-38b", "ocrbench", (None, None, 6, True)),
        ("llava-next-mistral-7b", "ocrbench", AS_THEY_ARE),
        ("qwen2-vl-7b", "ocrbench(min_pixels=9,max_pixels=99)", Pixels(9, 99)),
    ],
)
def test_images_are_bounded_as_in_mixkvs_code_where_a_benchmark_does_not_say(
    setting, model, task, pixels
):
    write(setting.data, 1, ["ocrbench"])
    assert replace(setting, model=model, small=False).task(task).pixels == pixels
    assert replace(setting, model=model).task(task).pixels == AS_THEY_ARE
    noted = [note for note in EXPERIMENTS["mixkv:table1"].settled if f" {model} " in note]
    assert len(noted) == (pixels != AS_THEY_ARE and model != "internvl3-38b")


@pytest.mark.parametrize(
    ("experiment", "notes"),
    [
        ("csp:table1-7b", {"llava-1.5-7b": ("llava_llama_2", "MileBench's, LOOK-M's and CSP's")}),
        ("lookm:table2", {"internvl-chat-v1.5": ("internlm2-chat", "LOOK-M's and CSP's")}),
        ("lookm:table3", {"mobilevlm-v2-3b": ("v1 of the authors' code",)}),
        ("prefixkv:table16", {"llava-1.5-7b": ("llava_v1", "PrefixKV's")}),
        ("prefixkv:table17", {"llava-next-7b": ("llava_v1", "PrefixKV's")}),
        ("david:table2", {"llava-1.5-7b": ("vlmevalkit",), "llava-1.5-13b": ("vlmevalkit",)}),
        (
            "mixkv:table1",
            {
                "llava-next-mistral-7b": ("mistral_instruct",),
                "internvl3-8b": ("internvl2_5",),
                "qwen2-vl-7b": ("its own chat template",),
            },
        ),
    ],
)
def test_an_experiment_says_how_its_models_are_asked(experiment, notes):
    settled = EXPERIMENTS[experiment].settled
    for model, texts in notes.items():
        asked = [note for note in settled if note.startswith(f"{model} is asked ")]
        assert len(asked) == 1, settled
        assert all(text in asked[0] for text in texts), asked


def test_prompts_of_the_same_benchmark_are_one_papers_or_another_ones(setting):
    """By task, as its options: what rows share has one conversation."""
    write(setting.data, 1, ["mm_vet", "ocrbench"])
    llava = replace(setting, model="llava-1.5-7b", small=False)
    conversations = {
        name: llava.task(name).conversations.get("llava-1.5")
        for name in ("mm_vet", "mm_vet(image=before)", "ocrbench")
    }
    assert conversations == {
        "mm_vet": "llava_v1",
        "mm_vet(image=before)": "vlmevalkit",
        "ocrbench": "vlmevalkit",
    }


@pytest.mark.parametrize(
    ("model", "cut"), [("mobilevlm-v2-3b", (2048, 144)), ("llava-1.5-7b", (4096, 576))]
)
def test_milebenchs_prompts_are_cut_as_the_releases_configure(setting, model, cut):
    write(setting.data, 1, ["milebench"])
    name = "milebench_s4(set=ALFRED)"
    task = replace(setting, model=model, small=False).task(name)
    assert task.name == name
    assert next(task.samples(1, 0)).facts["cut"] == cut
