"""Kernels run in Triton's interpreter, and write to room that is full of NaN."""

import pytest
import torch

pytest.importorskip("triton")  # there is none for this system; `make test` installs it on Linux


@pytest.fixture(autouse=True)
def _poisoned(monkeypatch):
    empty = torch.empty

    def poisoned(*shape, **how):
        room = empty(*shape, **how)
        return room.fill_(torch.nan if room.is_floating_point() else torch.iinfo(room.dtype).min)

    monkeypatch.setattr(torch, "empty", poisoned)
