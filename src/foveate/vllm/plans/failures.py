"""Failures of requests that were taken in: a fixed reason to count by, and a sentence to read."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Reason(StrEnum):
    """Reasons by which ``foveate:failed_requests_total`` is labelled."""

    REQUEST = "request"
    """The scheduler cannot serve what the request asks of Foveate."""
    POOL = "pool"
    """The prompt needs more blocks at once than the pool has."""
    COMPRESSION = "compression"
    """The prompt cannot be compressed, as where its scores are no numbers."""
    ORDER = "order"
    """A worker's check found that it would read or move what the scheduler did not order."""


class RequestFailure(NamedTuple):
    """Failure of one request; ``sentence`` is for logs and clients."""

    reason: Reason
    sentence: str
