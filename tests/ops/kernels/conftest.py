"""Kernels run in Triton's interpreter, or on a GPU, and write to room that is full of NaN."""

import pytest
import torch

from tests.interpreter import missing


class _WithoutTriton(pytest.Module):
    def collect(self):
        pytest.skip(missing())


def pytest_pycollect_makemodule(module_path, parent):
    """Its own modules are skipped before they are imported, also where they are named alone."""
    if missing():
        return _WithoutTriton.from_parent(parent, path=module_path)
    return None


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    empty = torch.empty

    def poisoned(*shape, **how):
        room = empty(*shape, **how)
        return room.fill_(torch.nan if room.is_floating_point() else torch.iinfo(room.dtype).min)

    monkeypatch.setattr(torch, "empty", poisoned)
