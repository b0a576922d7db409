"""How many tokens a second the largest batch gives whose caches fit into memory."""

from __future__ import annotations

from typing import NamedTuple

import torch

from foveate.backends.hf import compress
from foveate.backends.hf.internals import CACHE
from foveate.bench.subject import Subject
from foveate.bench.timing import Filled, steps

ON_CPU = 2**30  # bytes of caches where nothing else is asked for
SHARE = 0.8  # of a GPU's free memory


class Throughput(NamedTuple):
    """Rows that go on together, and the tokens that they give each second."""

    rows: int
    tokens_per_s: float


def room_for_caches(device: torch.device) -> int:
    """Bytes that caches may take by default."""
    if device.type != "cuda":
        return ON_CPU
    return int(SHARE * torch.cuda.mem_get_info(device)[0])


def throughput(subject: Subject, filled: Filled, memory: int, count: int) -> Throughput | None:
    """Decoding with as many copies of one prompt's cache as fit into ``memory`` bytes, with room
    for their answers; None if not even one does. A GPU that has less than that halves the batch.
    """
    rows = memory // _bytes_of_a_row(subject, filled, count)
    while rows:
        try:
            return Throughput(rows, rows / steps(subject, filled, count, rows))
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            rows //= 2
    return None


def _bytes_of_a_row(subject: Subject, filled: Filled, count: int) -> int:
    """What one row's cache holds after ``count`` more tokens."""
    with compress(subject.model, filled.policy) as session, torch.no_grad():
        copy = session.fork(filled.cache)
        token = subject.ids[:, -1:]
        for _ in range(count + 1):
            subject.model(input_ids=token, **{CACHE: copy})
        return session.bytes_held
