"""Where the suite runs, and shapes of published models with drawn weights there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from foveate.errors import InvalidInput
from foveate.hf.model.internals import CACHE
from foveate.ops.choice import Impl, chosen, using
from foveate_lab.bench.dims import of_shape, shape, toy
from foveate_lab.bench.subject import Subject, with_drawn_ids


@dataclass(frozen=True, kw_only=True)
class SuiteSetting:
    """Where the suite runs.

    ``quick`` has toy sizes, whose figures mean nothing: they show that the suite runs. ``kernels``
    are those under which models are measured; ``peer_python`` is the interpreter of an environment
    that has kvpress, or None.

    Raises:
        InvalidInput: a device that is not there, or a CPU without ``quick``.
        MissingPackage: Triton's kernels, and Triton is not installed.
    """

    device: str = "cuda"
    quick: bool = False
    kernels: Impl = "triton"
    peer_python: str | None = None

    def __post_init__(self) -> None:
        if self.device not in ("cuda", "cpu"):
            raise InvalidInput(f"device {self.device!r}: the suite runs on cuda, or quick on cpu.")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InvalidInput(
                f"the GPU suite needs a CUDA GPU, and PyTorch {torch.__version__} finds none. It "
                "takes an NVIDIA GPU with 24 GB or more (40 GB for all parts), its driver and a "
                "CUDA build of PyTorch. To try the suite out at toy sizes: --device cpu --quick."
            )
        if self.device == "cpu" and not self.quick:
            raise InvalidInput("the suite's sizes are a GPU's. Add --quick to try it on a CPU.")
        chosen(self.kernels)

    @property
    def place(self) -> torch.device:
        """Where tensors go."""
        return torch.device(self.device)

    @property
    def on_gpu(self) -> bool:
        """Whether there are CUDA graphs, events and synchronisations."""
        return self.device == "cuda"


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
