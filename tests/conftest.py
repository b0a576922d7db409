"""Shapes and types are checked at every call while the tests run."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported: its kernels run on the CPU

from jaxtyping import install_import_hook

install_import_hook("foveate", "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Tiny models are fastest on one thread."""
    torch.set_num_threads(1)
