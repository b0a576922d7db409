"""Client of a server with OpenAI's API, which repeats requests that may succeed later."""

from __future__ import annotations

import http.client
import json
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from foveate.defaults import SEES
from foveate.errors import InvalidParameter, ServerFailed

KEY = "OPENAI_API_KEY"
"""Environment variable with the key that the server asks for."""
TRIES, LONGEST_WAIT = 6, 60.0
TIMEOUT = 900.0  # seconds: a busy server queues requests
BUSY = (429, 500, 502, 503, 504)
"""Statuses after which a request is repeated."""
OF_THE_RUN = (401, 403, 404, 405)
"""Statuses that every request would get."""


class Refused(ServerFailed):
    """One request that the server does not answer; others may be answered."""


class Client:
    """Client of the server at ``url``, such as http://localhost:8000/v1.

    Raises:
        InvalidParameter: ``url`` is no address of a server.
    """

    def __init__(self, url: str | None):
        if not url or urlsplit(url).scheme not in ("http", "https"):
            raise InvalidParameter(
                f"--url {url!r}: --executor http needs the address of a server, such as "
                "--url http://localhost:8000/v1."
            )
        self.url = url.rstrip("/")

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request in JSON, and return the answer.

        Raises:
            Refused: the server refuses this request, or fails ``TRIES`` times.
            ServerFailed: the server cannot be reached, or refuses all requests.
        """
        reply: dict[str, Any] = self._json(f"{self.url}/{path}", json.dumps(body).encode())
        if not reply.get("choices"):
            raise Refused(f"{self.url}/{path} sent no answer: {json.dumps(reply)[:200]}")
        return reply

    def models(self) -> list[str]:
        """Return the names of the served models."""
        return [str(model["id"]) for model in self._json(f"{self.url}/models").get("data", ())]

    def metrics(self) -> str:
        """Return the server's metrics as Prometheus text; empty if it has none."""
        origin = urlsplit(self.url)
        try:
            return self._once(f"{origin.scheme}://{origin.netloc}/metrics", None).decode()
        except (OSError, http.client.HTTPException):
            return ""

    def _json(self, url: str, body: bytes | None = None) -> dict[str, Any]:
        text = self._text(url, body)
        try:
            reply: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ServerFailed(f"{url} sent no JSON: {text[:200]!r}") from error
        return reply

    def _text(self, url: str, body: bytes | None) -> bytes:
        for left in reversed(range(TRIES)):
            try:
                return self._once(url, body)
            except urllib.error.HTTPError as error:
                if error.code not in BUSY or not left:
                    raise _failure(url, error) from error
                wait = _seconds(error.headers.get("Retry-After"))
            except (OSError, http.client.HTTPException) as error:
                if not left:
                    raise ServerFailed(
                        f"{url} cannot be reached ({getattr(error, 'reason', error)}). Finished "
                        "answers are kept: start the server, and continue with --resume."
                    ) from error
                wait = None
            backoff = 2.0 ** (TRIES - 1 - left) * random.uniform(0.5, 1.0)
            time.sleep(min(LONGEST_WAIT, backoff if wait is None else wait))
        raise AssertionError("unreachable")

    def _once(self, url: str, body: bytes | None) -> bytes:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            content: bytes = answer.read()
            return content


def _failure(url: str, error: urllib.error.HTTPError) -> ServerFailed:
    text = error.read().decode(errors="replace")
    try:
        body = json.loads(text)
        message = str((body.get("error") or body).get("message") or text)
    except (ValueError, AttributeError):
        message = text
    if error.code not in OF_THE_RUN:
        return Refused(f"status {error.code}: {message[:500]}")
    hint = f" Set {KEY}." if error.code in (401, 403) else ""
    return ServerFailed(f"{url} refuses requests, status {error.code}: {message[:500]}{hint}")


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After header; None without one, or if it is a date."""
    return float(retry_after) if retry_after and retry_after.isdecimal() else None


def served_model(client: Client, name: str) -> str:
    """Return the served model of a name; the only one for the default name.

    Raises:
        InvalidParameter: the server has no such model, or several to choose from.
        ServerFailed: the server cannot be reached.
    """
    names = client.models()
    if name in names:
        return name
    if name == SEES and len(names) == 1:
        return names[0]
    raise InvalidParameter(
        f"--model {name!r} is not served at {client.url}. Choose one of {', '.join(names)}."
    )
