"""OVO-Bench: questions at a moment of a video, of which only what came before is seen.

Niu et al., arXiv:2501.05510. From https://huggingface.co/datasets/JoeLeelyf/OVO-Bench:
ovo_bench_new.json and chunked_videos/ (a file for every question, which ends at its moment), or
src_videos/, of which the frames up to that moment are taken. Scored as by the authors
(https://github.com/JoeLeelyf/OVO-Bench), quirks included: a choice is right where its capital
stands anywhere in the answer, and a count where all digits of the answer together are it. The words
of the prompts are ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from foveate.data import Folder, Record, VideoFile
from foveate.errors import InvalidInput
from foveate.policies.parameters import Positive
from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.film import LETTERS, Rate, film_prompt, lettered, video
from foveate_lab.eval.benchmarks.folder import Benchmark
from foveate_lab.eval.benchmarks.source import Source
from foveate_lab.eval.benchmarks.sources import Sources

PARTS = {
    "backward": ("EPM", "ASI", "HLD"),
    "realtime": ("OCR", "ACR", "ATR", "STU", "FPD", "OJR"),
    "forward": ("REC", "SSR", "CRR"),
}
FORWARD = {
    "REC": "Somebody in this video, or several people, may {} again and again. How many times, by "
    "all of them together, so far? Reply with the number alone.",
    "SSR": "This is a step of what the video shows: {}. Is it being done at the end of the video? "
    "Reply with Yes or No.",
    "CRR": "A question about the end of the video: {} Is what is seen so far enough to answer it? "
    "Reply with Yes or No.",
}
SAID = {"REC": "activity", "CRR": "question"}  # of the record; SSR's step is of the moment


SOURCES = Sources(
    "OVO-Bench",
    Source(
        contents="ovo_bench_new.json and chunked_videos/ or src_videos/",
        address="https://huggingface.co/datasets/JoeLeelyf/OVO-Bench",
        splits={"test": ("ovo_bench_new.json",)},
        folders=("", "data/"),
    ),
)


def scored(prediction: str, sample: Sample) -> float:
    """Return the score as the authors compute it for the question's task."""
    (answer,), reply = sample.answers, prediction.strip()
    if sample.labels["task"] == "REC":
        return float("".join(re.findall(r"\d+", reply)) == answer)
    if sample.labels["task"] in FORWARD and reply == answer[0]:  # "Y" or "N" alone
        return 1.0
    return float(answer in reply)


def _samples(
    part: str,
    folder: Folder,
    *,
    frames: Positive | None = None,
    fps: Rate | None = None,
) -> Iterator[Sample]:
    for record, _ in SOURCES.rows(folder):
        task = record.text("task")
        if task not in PARTS[part]:
            continue
        moments = [record] if part != "forward" else record.records("test_info", at_least=1)
        for number, moment in enumerate(moments):
            name = record.text_or_number("id") + (f"_{number}" if part == "forward" else "")
            question, answer = _prompt_and_answer(record, moment, task)
            yield Sample(
                name=name,
                question=question,
                answers=(answer,),
                videos=(_seen(folder, record, moment, name, fps, frames),),
                labels={"task": task},
            )


def _prompt_and_answer(record: Record, moment: Record, task: str) -> tuple[str, str]:
    """Return the prompt and the right answer."""
    if task not in FORWARD:
        options = record.texts("options", at_least=2)
        right = LETTERS[record.index("gt", len(options))]
        return film_prompt(record.text("question"), lettered(options)), right
    subject = moment.text("step") if task == "SSR" else record.text(SAID[task])
    right = ("No", "Yes")[moment.index("type", 2)] if task != "REC" else _count(moment)
    return FORWARD[task].format(subject), right


def _count(moment: Record) -> str:
    count = moment.number("count")
    if count != int(count) or count < 0:
        raise InvalidInput(f"{moment.where}: the field 'count' is {count}; it has to be a count.")
    return str(int(count))


def _seen(
    folder: Folder,
    record: Record,
    moment: Record,
    name: str,
    fps: int | float | None,
    frames: int | None,
) -> VideoFile:
    """Return the question's part of the video, or without parts the video up to its moment."""
    if folder.find("chunked_videos/*.mp4"):
        return video(folder, record, name, ("chunked_videos/{}.mp4",), fps, frames)
    end = float(moment.number("realtime"))
    source = record.text("video")
    paths = ("src_videos/{}", "{}", "src_videos/{base}")
    return video(folder, record, source, paths, fps, frames, end=end)


for _part, _what in (
    ("backward", "what came long before (EPM, ASI, HLD)"),
    ("realtime", "what is seen now (OCR, ACR, ATR, STU, FPD, OJR)"),
    ("forward", "whether it can be answered yet (REC, SSR, CRR)"),
):
    Benchmark(
        f"ovo_bench_{_part}",
        SOURCES,
        data="ovo_bench",
        metric=scored,
        longest=128,
        divisible=False,
        summary=f"OVO-Bench: at a moment of a video, {_what}.",
    )(partial(_samples, _part))
