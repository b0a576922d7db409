"""Answers from a server with OpenAI's API; ``foveate serve`` takes a policy with each request.

A server reports texts and, if it is Foveate's, tokens and what it kept of prompts. The fields of a
row that need logits (``kl`` and others) or times of the server's parts stay None.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from PIL import Image

from foveate.errors import FoveateError, InvalidInput, InvalidParameter
from foveate.loading.model import ModelSource, locate, read_reader
from foveate.prompts.prompt import interleave
from foveate.prompts.sample import PLACE, Sample
from foveate_lab.eval.answering.measure import failed
from foveate_lab.eval.answering.row import Row, agreement
from foveate_lab.eval.executors.client import Client, Refused
from foveate_lab.eval.executors.job import Execute, Job
from foveate_lab.eval.executors.served_policies import ServedPolicies
from foveate_lab.eval.metrics import rouge_l_to
from foveate_lab.eval.pixels import AS_THEY_ARE

WORKERS = 8
"""Requests in flight by default."""
DEVICE = "server"
"""Value of a row's ``device``: what computed the answer is unknown."""
KEPT = ("kept_tokens", "kv_bytes", "kv_bytes_full")
"""Fields of a row that Foveate's server reports; it leaves out bytes that its workers divide."""
UNKNOWN = (
    *("score_after_first", "kl", "nll", "reference_nll", "visual_tokens", "asked_tokens"),
    *("raised", "prefill_s", "compress_s", "decode_s_per_token", "dtype"),
)
"""Fields of a row that a server does not report."""


@dataclass(frozen=True)
class ServedAnswer:
    """Answer of a server: its text, its tokens if they are reported, its prompt's length, and the
    :data:`KEPT` fields that are reported.
    """

    text: str
    tokens: list[int] | None
    prompt_tokens: int | None
    kept: Mapping[str, float]
    seconds: float


class Http(AbstractContextManager[Execute]):
    """Executor that sends each sample to a server, ``workers`` samples at a time."""

    def __init__(self, client: Client, model: str, workers: int | None):
        self.client, self.model, self.workers = client, model, workers or WORKERS

    def __enter__(self) -> Execute:
        self._policies = ServedPolicies.of(self.client)
        self._threads = ThreadPoolExecutor(self.workers)
        return self._execute

    def __exit__(self, *error: Any) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _execute(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, list[Row]]]:
        pending = iter(jobs)
        flying: dict[Future[list[Row]], Job] = {}
        while True:
            for job in islice(pending, self.workers - len(flying)):
                self._check(job)
                flying[self._threads.submit(self._rows, job)] = job
            if not flying:
                return
            for done in wait(flying, return_when=FIRST_COMPLETED).done:
                yield flying.pop(done), done.result()

    def _check(self, job: Job) -> None:
        """Refuse options that need the model itself, and policies that are not served.

        Raises:
            InvalidParameter: the option or the policy.
        """
        options = {
            "--batch": (bool(job.beside), "the server forms batches; --workers sets how many run"),
            "--longest-prompt": (job.longest_prompt is not None, "it cuts tokens"),
            "--strict": (job.strict, "budgets are raised inside the server"),
            "min_pixels and max_pixels": (job.task.pixels != AS_THEY_ARE, "the server scales"),
        }
        for name, (is_set, reason) in options.items():
            if is_set:
                raise InvalidParameter(
                    f"{name} does not work with --executor http: {reason}. Leave it out."
                )
        for spec in job.specs:
            self._policies.arguments(spec)

    def _rows(self, job: Job) -> list[Row]:
        """Return a sample's rows: the full cache's, then each spec's.

        Raises:
            ServerFailed: the server cannot be reached, or takes no requests of this kind.
        """
        rows: list[Row] = []
        full: ServedAnswer | None = None
        try:
            request = self._request(job)
        except FoveateError as error:
            return [failed(job.task, job.sample, spec, error) for *_, spec in job.keys]
        for *_, spec in job.keys:
            if full is None and rows:  # nothing to compare with
                rows.append({**rows[0], "spec": spec})
                continue
            try:
                answer = self._answer(request, spec)
            except Refused as error:
                rows.append(failed(job.task, job.sample, spec, error))
                continue
            full = full or answer
            rows.append({**_row(job, spec, answer, full), "model": self.model})
        return rows

    def _request(self, job: Job) -> dict[str, Any]:
        """Return the body of a sample's requests, without the policy."""
        sample = job.task.fit(self._tokenizer, job.sample) if job.task.fit else job.sample
        common = {"model": self.model, "max_tokens": job.task.longest, "temperature": 0}
        if sample.plain and not sample.images:
            return {**common, "prompt": sample.text}
        return {**common, "messages": [{"role": "user", "content": _parts(sample)}]}

    @cached_property
    def _tokenizer(self) -> Any:
        return read_reader(ModelSource(self.model, locate(self.model), False), sees=False)

    def _answer(self, request: Mapping[str, Any], spec: str) -> ServedAnswer:
        """Ask for an answer under a policy.

        Raises:
            Refused, ServerFailed: see :class:`Client`.
        """
        path = "completions" if "prompt" in request else "chat/completions"
        began = time.perf_counter()
        reply = self.client.post(path, {**request, **self._policies.arguments(spec)})
        spent = time.perf_counter() - began
        choice = reply["choices"][0]
        if choice.get("finish_reason") == "error":
            raise Refused(f"the server ended the answer: {choice.get('stop_reason')}")
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        prompt_tokens = (reply.get("usage") or {}).get("prompt_tokens")
        kept = (reply.get("kv_transfer_params") or {}).get("foveate", {})
        tokens = choice.get("token_ids")
        return ServedAnswer((text or "").strip(), tokens, prompt_tokens, kept, spent)


def _parts(sample: Sample) -> list[dict[str, Any]]:
    """Return a sample's images and text as parts of a message.

    Raises:
        InvalidInput: videos, or an answer that is a position on the image.
    """
    if sample.videos or "box" in sample.facts:
        what = "a video" if sample.videos else "an answer that is a position on its image"
        raise InvalidInput(
            f"sample {sample.name} has {what}, which --executor http does not support. Use "
            "--executor local."
        )
    parts = interleave(sample.text, sample.images, PLACE)
    return [
        {"type": "image_url", "image_url": {"url": data_url(part["image"])}}
        if part["type"] == "image"
        else part
        for part in parts
    ]


def data_url(image: Image.Image) -> str:
    """Return an image as a PNG in a data URL."""
    with io.BytesIO() as file:
        image.save(file, "PNG")
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _row(job: Job, spec: str, answer: ServedAnswer, full: ServedAnswer) -> Row:
    """Return a row with the fields that a server reports; all others are None."""
    task, sample, text = job.task, job.sample, answer.text
    return {
        "task": task.name,
        "sample": sample.name,
        "spec": spec,
        **({} if job.number is None else {"place": job.number}),
        "question": sample.digest,
        "labels": dict(sample.labels),
        "image_sizes": [list(image.size) for image in sample.images],
        "prediction": text,
        "answers": list(sample.answers),
        "score": task.metric(text, sample),
        **_compared(answer, full),
        "rouge_full": 1.0 if text == full.text else rouge_l_to(text, full.text),
        "feature_error": [],
        "reference_tokens": 0,
        "tokens": answer.prompt_tokens,
        **dict.fromkeys(UNKNOWN),
        **{name: answer.kept.get(name) for name in KEPT},
        "device": DEVICE,
        "spent_s": round(answer.seconds, 4),
    }


def _compared(answer: ServedAnswer, full: ServedAnswer) -> Row:
    """Compare tokens with the full cache's answer; None if the server does not report them."""
    if answer.tokens is None or full.tokens is None:
        return {"agreement": None} | ({"first_divergence": None} if answer is full else {})
    return agreement(answer.tokens, full.tokens)
