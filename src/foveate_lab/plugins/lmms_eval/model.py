"""Model of lmms-eval with a compressed cache.

Follows lmms-eval 0.7.3: a chat model, which receives messages with images and videos in place.
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

TOKENS = 1024  # maximum tokens of an answer if a task sets none
PASSED_ON = {"temperature", "do_sample", "top_p", "top_k", "num_beams", "repetition_penalty"}
REFUSALS = (InvalidBudget, MissingModality)  # errors that concern a single prompt
NOT_FOR_US = {"image_aspect_ratio"}  # for LLaVA's own code; here the model's processor decides


class Foveate(lmms):  # type: ignore[misc]  # Any: lmms-eval may not be installed
    """Model that answers requests one by one and logs the realised cache size.

    Args:
        pretrained: a directory, a hub id, or "demo".
        method: policy of the cache, "mixkv:budget=64". Put a spec with commas in quotes.
        device: "cpu" or "cuda:0"; by default the GPU if there is one.
        trust_remote_code: run Python code that comes with the model.
        batch_size: must be 1.
        max_batch_size: passed by lmms-eval; ignored.
        system_prompt: system turn before every conversation, as text or as a file;
            ``--system_instruction`` is an alternative.
        strict: refuse a budget that is less than what is always kept of a prompt; otherwise
            it is raised to that.
        fps: frames per second to sample from a video.
        frames: number of evenly spaced frames to sample from a video; 32 if neither is set.
        refused: action for a prompt that the policy refuses: "stop" ends the evaluation with
            the reason; "empty" gives an empty answer, which is counted, and logged with the
            reason.
        **others: refused; the remains of an unquoted spec that was cut at its commas.

    Raises:
        InvalidParameter: arguments that are missing, unknown, or not supported.
    """

    is_simple = False  # lmms-eval then passes messages instead of one text

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
        """Answer requests in order, then pass all figures to lmms-eval's "throughput".

        Raises:
            FoveateError: a refused message, option or prompt; notes name the document.
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
                    error.add_note("Give refused=empty in --model_args to skip such documents.")
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
        system, task_object = self.system_prompt, getattr(as_messages, "__self__", None)
        if task_object is not None:
            system_instruction = instruction(context, task_object, document)
            if system_instruction and system:
                raise InvalidInput(
                    f"--system_instruction {system_instruction!r} and system_prompt={system!r}: "
                    "give one of them."
                )
            system = system or system_instruction
        chat = self._apply_system_prompt(list(as_messages(document)), system)
        messages = [_message(message, *self.sampling) for message in chat]
        return self.answerer(messages, **_options(task, options))

    @property
    def chat_template(self) -> Any:
        """Refuse ``--apply_chat_template``: chat models always apply their template."""
        raise InvalidInput(
            "--apply_chat_template is for models that read one text; this one receives messages "
            "and applies its own template. Leave it out."
        )

    apply_chat_template = chat_template

    def loglikelihood(self, requests: Sequence[Any]) -> Any:
        """Refuse: tasks of this type need only the uncompressed prefill."""
        raise InvalidInput(
            "tasks that rank answers (loglikelihood) score them in the prefill, before any "
            "compression. Choose tasks that generate."
        )

    def generate_until_multi_round(self, requests: Sequence[Any]) -> Any:
        """Refuse: a second round would be compressed differently from the first."""
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


def _message(message: Mapping[str, Any], fps: int | float | None, frames: int | None) -> Message:
    """Convert a message of lmms-eval to the form of chat templates."""
    content = message["content"]
    if isinstance(content, str):
        return {"role": message["role"], "content": [text_part(content)]}
    return {"role": message["role"], "content": [_part(part, fps, frames) for part in content]}


def _part(part: Mapping[str, Any], fps: int | float | None, frames: int | None) -> Part:
    if part["type"] == "text":
        return text_part(part["text"])
    if part["type"] == "video":
        return _video(part, fps, frames)
    if part["type"] != "image":
        raise InvalidInput(
            f"a message with {part['type']}: only text, images and videos are supported."
        )
    return image_part(part["url"])


def _video(part: Mapping[str, Any], fps: int | float | None, frames: int | None) -> Part:
    """Read a video of a file, or a part of it; lmms-eval has two forms for it."""
    video = part["url"] if isinstance(part["url"], Mapping) else part
    path = video.get("url") or video.get("path") or video.get("video")
    if not isinstance(path, str | os.PathLike):
        raise InvalidInput(f"a video given as {type(path).__name__}: give the path of a file.")
    start, end = (
        video.get(f"{name}_time", video.get(f"video_{name}")) for name in ("start", "end")
    )
    start = 0.0 if start is None else start
    return video_part(read_video(Path(path), fps=fps, frames=frames, start=start, end=end))


def _options(task: str, generation_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's generation options; None counts as unset."""
    known = {key: value for key, value in generation_kwargs.items() if value is not None}
    until = known.pop("until", ())
    tokens = known.pop("max_new_tokens", TOKENS)
    unknown = sorted(set(known) - PASSED_ON - NOT_FOR_US)
    if unknown:
        raise InvalidInput(
            f"task {task} has generation_kwargs that are not supported: {unknown}. Leave them out "
            f"of it; what is supported: {sorted(PASSED_ON | {'until', 'max_new_tokens'})}."
        )
    passed = {key: value for key, value in known.items() if key in PASSED_ON}
    return {**passed, "tokens": tokens, "until": [until] if isinstance(until, str) else until}
