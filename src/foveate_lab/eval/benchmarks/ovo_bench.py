"""OVO-Bench: questions at a moment of a video, answered from the frames up to that moment.

Niu et al., arXiv:2501.05510. The data are ovo_bench_new.json and one folder of videos from
https://huggingface.co/datasets/JoeLeelyf/OVO-Bench:

- chunked_videos/ has a file per question, which ends at the question's moment.
- src_videos/ has the complete videos; only their frames up to the moment are used.

The scores are the authors' (https://github.com/JoeLeelyf/OVO-Bench), quirks included:

- A choice is right if its capital letter is anywhere in the answer.
- "Yes" or "No" is right if it is anywhere in the answer, or if the answer is "Y" or "N" alone.
- A count is right if it equals all digits of the answer, joined: "1 or 2" is read as 12.

The texts of the prompts are ours.
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
    # episodic memory, action sequence identification, hallucination detection
    "backward": ("EPM", "ASI", "HLD"),
    # recognition of text, actions, and attributes; spatial understanding, future prediction,
    # object recognition
    "realtime": ("OCR", "ACR", "ATR", "STU", "FPD", "OJR"),
    # repetition event count, sequential steps recognition, clues reveal responding
    "forward": ("REC", "SSR", "CRR"),
}
"""Tasks of each part of the benchmark. Tasks outside "forward" have choices."""
FORWARD_PROMPTS = {
    "REC": "Somebody in this video, or several people, may {} again and again. How many times, by "
    "all of them together, so far? Reply with the number alone.",
    "SSR": "This is a step of what the video shows: {}. Is it being done at the end of the video? "
    "Reply with Yes or No.",
    "CRR": "A question about the end of the video: {} Is what is seen so far enough to answer it? "
    "Reply with Yes or No.",
}
SUBJECT_FIELDS = {"REC": "activity", "CRR": "question"}
"""Field of a record whose text completes the prompt. For SSR, each moment has its own: "step"."""


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
    """Return 1.0 if the authors' rule for the sample's task accepts the prediction, else 0.0."""
    (answer,), reply = sample.answers, prediction.strip()
    if sample.labels["task"] == "REC":
        return float("".join(re.findall(r"\d+", reply)) == answer)
    if sample.labels["task"] in FORWARD_PROMPTS and reply == answer[0]:  # "Y" or "N" alone
        return 1.0
    return float(answer in reply)  # anywhere: "A" is also found in "An animal"


def _samples(
    part: str,
    folder: Folder,
    *,
    frames: Positive | None = None,
    fps: Rate | None = None,
) -> Iterator[Sample]:
    """Yield the samples of one part: one per record, or in "forward" one per moment of a record."""
    for record, _ in SOURCES.rows(folder):
        task = record.text("task")
        if task not in PARTS[part]:
            continue
        moments = [record] if part != "forward" else record.records("test_info", at_least=1)
        for index, moment in enumerate(moments):
            # the release names the files of chunked_videos/ like this, too
            name = record.text_or_number("id") + (f"_{index}" if part == "forward" else "")
            question, answer = _prompt_and_answer(record, moment, task)
            yield Sample(
                name=name,
                question=question,
                answers=(answer,),
                videos=(_video_up_to(moment, folder, record, name, fps, frames),),
                labels={"task": task},
            )


def _prompt_and_answer(record: Record, moment: Record, task: str) -> tuple[str, str]:
    """Return the prompt at one moment, and its right answer: a letter, "Yes", "No" or a count."""
    if task not in FORWARD_PROMPTS:
        options = record.texts("options", at_least=2)
        answer = LETTERS[record.index("gt", len(options))]
        return film_prompt(record.text("question"), lettered(options)), answer
    subject = moment.text("step") if task == "SSR" else record.text(SUBJECT_FIELDS[task])
    answer = ("No", "Yes")[moment.index("type", 2)] if task != "REC" else _count(moment)
    return FORWARD_PROMPTS[task].format(subject), answer


def _count(moment: Record) -> str:
    """Return the count of a moment as text.

    Raises:
        InvalidInput: it is negative, or not a whole number.
    """
    count = moment.number("count")
    if count != int(count) or count < 0:
        raise InvalidInput(f"{moment.where}: the field 'count' is {count}; it has to be a count.")
    return str(int(count))


def _video_up_to(
    moment: Record,
    folder: Folder,
    record: Record,
    name: str,
    fps: int | float | None,
    frames: int | None,
) -> VideoFile:
    """Return the video up to a moment.

    That is the file of chunked_videos/ named ``name``. If the folder has no such files, it is the
    complete video, of which only frames before the moment are read.
    """
    if folder.find("chunked_videos/*.mp4"):
        return video(folder, record, name, ("chunked_videos/{}.mp4",), fps, frames)
    end = float(moment.number("realtime"))  # seconds; unrelated to the part "realtime"
    source = record.text("video")
    paths = ("src_videos/{}", "{}", "src_videos/{base}")
    return video(folder, record, source, paths, fps, frames, end=end)


for _part, _topic in (
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
        divisible=False,  # without its first token, an answer may have lost its letter or digit
        summary=f"OVO-Bench: at a moment of a video, {_topic}.",
    )(partial(_samples, _part))
