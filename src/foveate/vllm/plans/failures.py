"""Failures of accepted requests: a fixed reason to count by, and a sentence to read."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Reason(StrEnum):
    """Reasons by which ``foveate:failed_requests_total`` is labelled."""

    REQUEST = "request"
    """The scheduler cannot serve the request's Foveate arguments."""
    POOL = "pool"
    """The prompt needs more blocks at once than the pool has."""
    COMPRESSION = "compression"
    """The prompt cannot be compressed, for example because scores are NaN."""
    ORDER = "order"
    """A worker's check found a read or a move that the scheduler did not order."""


class RequestFailure(NamedTuple):
    """Failure of one request; ``sentence`` is for logs and clients."""

    reason: Reason
    sentence: str
