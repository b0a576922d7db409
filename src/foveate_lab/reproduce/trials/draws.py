"""Sampled answers of the full cache: how far two runs of one model differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from foveate.errors import FoveateError
from foveate.hf import branch, compress
from foveate.hf.measuring.answer import greedy
from foveate.hf.model.internals import CACHE
from foveate.hf.probe.questions import ends
from foveate.loading.model import Loaded
from foveate.prompts.sample import Sample
from foveate_lab.eval.answering.measure import failed
from foveate_lab.eval.answering.reading import FULL, read_prompt
from foveate_lab.eval.answering.row import Row
from foveate_lab.eval.metrics import rouge_l_to
from foveate_lab.eval.task_registry import Task
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.task_request import TaskRequest
from foveate_lab.reproduce.trials.answers import missing

TOP_K = 50  # the default of transformers' generate(), which PrefixKV's script keeps


def drawn_rows(setting: Setting, request: TaskRequest, temperature: float) -> Iterator[Row]:
    """Yield the missing rows of an ask, one for each sample, with the ROUGE-L of drawn answers."""
    lacking = set(missing(setting, request, {}))
    for index, (task, sample) in enumerate(setting.samples(request) if lacking else ()):
        if (task.name, sample.name, FULL) not in lacking:
            continue
        try:
            scores = _scores(setting.load(), task, sample, request, temperature, setting.seed)
        except FoveateError as error:
            yield {**failed(task, sample, FULL, error), "place": index}
            continue
        named = {"task": task.name, "sample": sample.name, "spec": FULL, "place": index}
        yield {**named, "labels": dict(sample.labels), **scores}


@torch.no_grad()
def _scores(
    loaded: Loaded, task: Task, sample: Sample, request: TaskRequest, temperature: float, seed: int
) -> dict[str, Any]:
    """Answer one prompt greedily and twice by sampling, and compare the three answers."""
    longest = request.longest_prompt
    reading = read_prompt(loaded, task, sample, "query-aware", timed=False, longest_prompt=longest)
    recording, _ = reading.recorded(sums=False)
    model, tokenizer = loaded.model, loaded.tokenizer
    with compress(model, reading.policy(FULL), tokenizer=tokenizer) as session:
        likeliest = greedy(model, branch(session, recording), recording.logits, task.longest)
        draws = [
            drawn(
                model,
                branch(session, recording),
                recording.logits,
                task.longest,
                temperature,
                _generator(seed, sample, number),
            )
            for number in (1, 2)
        ]
    best, first, second = (
        tokenizer.decode(tokens, skip_special_tokens=True).strip() for tokens in (likeliest, *draws)
    )
    return {
        "prediction": first,
        "second_draw": second,
        "tokens": reading.prompt.tokens,
        "rouge_draws": _rouge(first, second),
        "rouge_greedy": _rouge(first, best),
    }


def _rouge(prediction: str, reference: str) -> float:
    """Return ROUGE-L; 1 for equal texts, which may be empty."""
    return 1.0 if prediction == reference else rouge_l_to(prediction, reference)


def _generator(seed: int, sample: Sample, number: int) -> torch.Generator:
    """Return a generator that depends on the sample and the draw, and not on the order of rows."""
    digest = hashlib.sha256(f"{seed} {sample.name} {sample.digest} {number}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def drawn(
    model: PreTrainedModel,
    cache: DynamicCache,
    first: Tensor,
    longest: int,
    temperature: float,
    generator: torch.Generator,
) -> list[int]:
    """Sample the tokens of an answer, the one that ends it included.

    Args:
        model: the model, inside its ``compress()`` context.
        cache: the prompt's cache, which grows by the answer.
        first: logits of the answer's first token, [1, vocabulary].
        longest: most tokens of the answer.
        temperature: divisor of the logits.
        generator: source of randomness, on the CPU, so that all devices draw alike.
    """
    stop, answer, logits = ends(model), list[int](), first
    while True:
        scores = (logits[0].float() / temperature).cpu()
        likeliest = scores.topk(min(TOP_K, len(scores)))
        chosen = int(torch.multinomial(likeliest.values.softmax(-1), 1, generator=generator))
        answer.append(int(likeliest.indices[chosen]))
        if answer[-1] in stop or len(answer) >= longest:
            return answer
        fed = torch.tensor([answer[-1:]], dtype=torch.long, device=first.device)
        logits = model(input_ids=fed, **{CACHE: cache}).logits[:, -1]
