"""Shapes of published models with drawn weights, where the suite runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from benchmarks.gpu.setting import SuiteSetting
from foveate.hf.model.internals import CACHE
from foveate.ops.choice import using
from foveate_lab.bench.dims import of_shape, shape, toy
from foveate_lab.bench.subject import Subject, with_drawn_ids


def subject_of(
    name: str, tokens: int, setting: SuiteSetting, *, layers: int | None = None, batch: int = 1
) -> Subject:
    """A model in bfloat16 with a prompt of so many drawn tokens in each row; a toy of that shape
    and the prompt's first few tokens where the setting is quick.
    """
    dims = shape(name, layers)
    model = of_shape(toy(dims) if setting.quick else dims, setting.place, torch.bfloat16)
    none = torch.empty(0, dtype=torch.long, device="cpu")
    return with_other_prompt(Subject(name, model, none, random=True), tokens, setting, batch=batch)


def with_other_prompt(
    subject: Subject, tokens: int, setting: SuiteSetting, *, batch: int = 1
) -> Subject:
    """The same model with another prompt."""
    one = with_drawn_ids(subject.name, subject.model, short(tokens, setting))
    return Subject(one.name, one.model, one.ids.expand(batch, -1), random=True)


def short(tokens: int, setting: SuiteSetting) -> int:
    """So many tokens, or a few where the setting is quick."""
    return min(96, max(2, tokens // 128)) if setting.quick else tokens


@contextmanager
def measured_with(setting: SuiteSetting) -> Iterator[None]:
    """The setting's kernels, and no gradients."""
    with using(setting.kernels), torch.no_grad():
        yield


def stepping(subject: Subject, cache: DynamicCache | Any) -> Callable[[], Tensor]:
    """A decoding step, of the prompt's last token."""
    token = subject.ids[:, -1:].clone()

    def step() -> Tensor:
        logits: Tensor = subject.model(input_ids=token, **{CACHE: cache}).logits
        return logits

    return step
