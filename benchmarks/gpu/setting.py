"""What a run of the suite is to measure on, and how large."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foveate.errors import InvalidInput
from foveate.ops.choice import Impl, chosen


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
