"""Setting of the suite, and models in published shapes with random weights."""

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
    """Setting of the suite: device, sizes and kernels.

    ``quick`` uses toy sizes, whose figures only show that the suite runs. ``kernels`` is the
    implementation for models; ``peer_python`` is the interpreter of an environment with
    kvpress, or None.

    Raises:
        InvalidInput: a missing device, or a CPU without ``quick``.
        MissingPackage: Triton's kernels without Triton.
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
    def torch_device(self) -> torch.device:
        """Device for tensors."""
        return torch.device(self.device)

    @property
    def on_gpu(self) -> bool:
        """True on a CUDA GPU, which has graphs, events and synchronisations."""
        return self.device == "cuda"


def subject_of(
    name: str, tokens: int, setting: SuiteSetting, *, layers: int | None = None, batch: int = 1
) -> Subject:
    """Return a model in bfloat16 with ``tokens`` random tokens in each row; a toy if ``quick``."""
    dims = shape(name, layers)
    model = of_shape(toy(dims) if setting.quick else dims, setting.torch_device, torch.bfloat16)
    none = torch.empty(0, dtype=torch.long, device="cpu")
    return with_other_prompt(Subject(name, model, none, random=True), tokens, setting, batch=batch)


def with_other_prompt(
    subject: Subject, tokens: int, setting: SuiteSetting, *, batch: int = 1
) -> Subject:
    """Return the same model with another prompt."""
    other = with_drawn_ids(subject.name, subject.model, short(tokens, setting))
    return Subject(other.name, other.model, other.ids.expand(batch, -1), random=True)


def short(tokens: int, setting: SuiteSetting) -> int:
    """Return ``tokens``, or a small number if ``quick``."""
    return min(96, max(2, tokens // 128)) if setting.quick else tokens


@contextmanager
def measured_with(setting: SuiteSetting) -> Iterator[None]:
    """Use the setting's kernels, without gradients."""
    with using(setting.kernels), torch.no_grad():
        yield


def stepping(subject: Subject, cache: DynamicCache | Any) -> Callable[[], Tensor]:
    """Return a decoding step with the prompt's last token."""
    token = subject.ids[:, -1:].clone()

    def step() -> Tensor:
        logits: Tensor = subject.model(input_ids=token, **{CACHE: cache}).logits
        return logits

    return step
