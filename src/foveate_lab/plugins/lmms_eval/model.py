"""A model of lmms-eval whose cache is compressed.

Follows lmms-eval 0.7.3: a chat model, which is handed messages with images and videos in their
places.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lmms_eval.api.instance import GenerationResult
from lmms_eval.api.model import lmms
from loguru import logger
from tqdm import tqdm

from foveate.data import read_video
from foveate.data.clip import check_sampling
from foveate.errors import (
    FoveateError,
    InvalidBudget,
    InvalidInput,
    InvalidParameter,
    MissingModality,
)
from foveate.prompts.messages import Message
from foveate.prompts.prompt import Part, image_part, text_part, video_part
from foveate_lab.defaults import FILM_FRAMES
from foveate_lab.plugins.answerer import PluginAnswer, PluginAnswerer
from foveate_lab.plugins.lmms_eval.context import instruction
from foveate_lab.plugins.lmms_eval.results import log, result

TOKENS = 1024  # the most that are answered where a task does not say
PASSED_ON = {"temperature", "do_sample", "top_p", "top_k", "num_beams", "repetition_penalty"}
REFUSALS = (InvalidBudget, MissingModality)  # what a policy may say of one prompt
NOT_FOR_US = {"image_aspect_ratio"}  # LLaVA's own code; here the model's processor knows


class Foveate(lmms):  # type: ignore[misc]  # lmms-eval need not be there where types are checked
    """Answers one request after the other, and logs the realised cache size.

    Args:
        pretrained: a directory, a hub id, or "demo".
        method: what the cache keeps, "mixkv:budget=64". A spec with commas stands in quotes.
        device: "cpu" or "cuda:0"; by default the GPU if there is one.
        trust_remote_code: whether Python code that the model brings along runs.
        batch_size: 1.
        max_batch_size: lmms-eval's; nothing to choose from here.
        system_prompt: a text, or a file with it, for the system's turn before every conversation;
            ``--system_instruction`` is another way to give it.
        strict: whether a budget is refused that is less than what is always kept of a prompt;
            otherwise it is raised to that.
        fps: frames a second that are taken of a video.
        frames: frames that are taken of a video, at even distances; 32 where neither is given.
        refused: what a document gets whose prompt the policy refuses: "stop" ends the evaluation
            with the reason, "empty" is an answer without a word, which is counted, and logged with
            the reason.
        **others: refused; what is left of a spec that was cut at its commas.

    Raises:
        InvalidParameter: arguments that are missing, unknown, or not supported.
    """

    is_simple = False

    def __init__(
        self,
        pretrained: str | None = None,
        method: str | None = None,
        device: str | None = None,
        batch_size: int | str = 1,
        max_batch_size: int | str | None = None,
        system_prompt: str | None = None,
        strict: bool = False,
        refused: str = "stop",
        fps: int | float | None = None,
        frames: int | None = None,
        trust_remote_code: bool = False,
        **others: Any,
    ):
        super().__init__()
        _check_others(method, others)
        if not isinstance(pretrained, str) or not isinstance(method, str):
            raise InvalidParameter(
                f"pretrained={pretrained!r}, method={method!r}: give both, as in --model_args "
                "pretrained=DIRECTORY,method=mixkv:budget=64 (method=full for the stock cache)."
            )
        if str(batch_size) != "1":
            raise InvalidParameter(
                f"batch_size={batch_size!r}: samples are answered one by one here. Give "
                "--batch_size 1."
            )
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InvalidParameter(
                f"WORLD_SIZE={os.environ['WORLD_SIZE']}: this model runs in one process. Start "
                "lmms-eval itself, without accelerate or torchrun."
            )
        if not isinstance(trust_remote_code, bool):
            raise InvalidParameter(f"trust_remote_code={trust_remote_code!r}: give True or False.")
        if not isinstance(strict, bool):
            raise InvalidParameter(f"strict={strict!r}: give True or False.")
        if refused not in ("stop", "empty"):
            raise InvalidParameter(f"refused={refused!r}: choose 'stop' or 'empty'.")
        check_sampling(fps, frames)
        self.sampling = (fps, FILM_FRAMES if fps is None and frames is None else frames)
        self.goes_on = refused == "empty"
        self.system_prompt = self._resolve_system_prompt(str(system_prompt or ""))
        self.answerer = PluginAnswerer(pretrained, method, device, trust_remote_code, strict)

    def generate_until(self, requests: Sequence[Any]) -> list[GenerationResult]:
        """The answers, in order; then the figures of all go to lmms-eval's "throughput".

        Raises:
            FoveateError: a message, an option or a prompt that is refused; notes say where.
        """
        results, answers = [], defaultdict[str, list[PluginAnswer | None]](list)
        for request in tqdm(requests, desc="Answering"):
            context, _, options, doc_id, task, _ = request.args
            try:
                answer = self._answer_to(request)
            except FoveateError as error:
                error.add_note(f"In task {task}, document {doc_id}.")
                if not isinstance(error, REFUSALS):
                    raise
                if not self.goes_on:
                    error.add_note("With refused=empty in --model_args, such documents are passed.")
                    raise
                logger.warning(f"Task {task}, document {doc_id}: no answer, {error}")
                answer = None
            answers[task].append(answer)
            results.append(result(answer))
            self.cache_hook.add_partial("generate_until", (context, options), results[-1].text)
        if answers:
            log(answers)
        return results

    def _answer_to(self, request: Any) -> PluginAnswer:
        context, as_messages, options, doc_id, task, split = request.args
        document = self.task_dict[task][split][doc_id]
        said, asked_of = self.system_prompt, getattr(as_messages, "__self__", None)
        if asked_of is not None:
            given = instruction(context, asked_of, document)
            if given and said:
                raise InvalidInput(
                    f"--system_instruction {given!r} and system_prompt={said!r}: give one of them."
                )
            said = said or given
        worded = self._apply_system_prompt(list(as_messages(document)), said)
        messages = [_message(one, *self.sampling) for one in worded]
        return self.answerer(messages, **_options(task, options))

    @property
    def chat_template(self) -> Any:
        """Refused: what ``--apply_chat_template`` asks for, and chat models do in any case."""
        raise InvalidInput(
            "--apply_chat_template is for models that read one text: this one is handed messages, "
            "and words them as its own template says. Leave it out."
        )

    apply_chat_template = chat_template

    def loglikelihood(self, requests: Sequence[Any]) -> Any:
        """Refused: what a task asks for is the uncompressed prefill's."""
        raise InvalidInput(
            "tasks that rank given answers (loglikelihood) read them in the prefill, which no "
            "cache has a part in. Choose tasks that generate."
        )

    def generate_until_multi_round(self, requests: Sequence[Any]) -> Any:
        """Refused: a second round would be compressed otherwise than the first."""
        raise InvalidInput("tasks of several rounds are not supported. Choose others.")


def _check_others(method: str | None, others: Mapping[str, Any]) -> None:
    if not others:
        return
    rest = ",".join(f"{key}={value}" for key, value in others.items())
    raise InvalidParameter(
        f"--model_args has {rest!r}, which the model does not take. If it belongs to the method, "
        f"put the whole spec in quotes, which guard its commas: "
        f"""--model_args "pretrained=...,method='{method},{rest}'"."""
    )


def _message(given: Mapping[str, Any], fps: int | float | None, frames: int | None) -> Message:
    """lmms-eval's message as chat templates take it."""
    content = given["content"]
    if isinstance(content, str):
        return {"role": given["role"], "content": [text_part(content)]}
    return {"role": given["role"], "content": [_part(one, fps, frames) for one in content]}


def _part(given: Mapping[str, Any], fps: int | float | None, frames: int | None) -> Part:
    if given["type"] == "text":
        return text_part(given["text"])
    if given["type"] == "video":
        return _video(given, fps, frames)
    if given["type"] != "image":
        raise InvalidInput(
            f"a message with {given['type']}: only text, images and videos are supported."
        )
    return image_part(given["url"])


def _video(given: Mapping[str, Any], fps: int | float | None, frames: int | None) -> Part:
    """Of a file, or of a part of it, which lmms-eval words in two ways."""
    said = given["url"] if isinstance(given["url"], Mapping) else given
    path = said.get("url") or said.get("path") or said.get("video")
    if not isinstance(path, str | os.PathLike):
        raise InvalidInput(f"a video given as {type(path).__name__}: give the path of a file.")
    start, end = (said.get(f"{name}_time", said.get(f"video_{name}")) for name in ("start", "end"))
    start = 0.0 if start is None else start
    return video_part(read_video(Path(path), fps=fps, frames=frames, start=start, end=end))


def _options(task: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a task says about answers; None counts as not said."""
    said = {key: value for key, value in given.items() if value is not None}
    until = said.pop("until", ())
    tokens = said.pop("max_new_tokens", TOKENS)
    unknown = sorted(set(said) - PASSED_ON - NOT_FOR_US)
    if unknown:
        raise InvalidInput(
            f"task {task} has generation_kwargs that are not supported: {unknown}. Leave them out "
            f"of it; what is supported: {sorted(PASSED_ON | {'until', 'max_new_tokens'})}."
        )
    passed = {key: value for key, value in said.items() if key in PASSED_ON}
    return {**passed, "tokens": tokens, "until": [until] if isinstance(until, str) else until}
