"""Server of OpenAI's chat-completions API: several conversations in one process, without vLLM.

    pip install "foveate[server]"
    python examples/openai_server.py --port 8000

Any OpenAI client can then use http://localhost:8000/v1, streaming included. Clients send the
complete conversation with every request. The server stores the caches of the latest answers,
continues the one that shares the longest beginning with the request, and reads only the rest
(``usage.prompt_tokens_details.cached_tokens`` are reused).

There is no authentication: serve clients that you trust.
"""

import argparse
import asyncio
import json
import time
import uuid
from collections import deque
from functools import partial

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

import foveate
from foveate.chat import AsyncAnswerStream
from foveate.errors import InvalidInput
from foveate_demo import vision

REASONS = {"eos": "stop", "length": "length", "stopped": "stop"}
PARTS = ("text", "image_url")
UNSUPPORTED = ("stop", "response_format", "logprobs", "audio")


class Server:
    """ASGI application for one model.

    Args:
        model: the model.
        processor: its processor or tokenizer.
        policy: a policy or its spec.
        name: the model's name in the API.
        stored: the number of answers whose caches are stored; the least recently used one is
            dropped first.
        **settings: further arguments of :class:`foveate.Chat`.
    """

    def __init__(self, model, processor, policy, name, *, stored=16, **settings):
        # Stored chats are never continued, only forked: several requests may share one. None needs
        # its earlier turns, which are stored as chats of their own.
        self.new_chat = partial(foveate.Chat, model, processor, policy, keep_turns=0, **settings)
        self.chats = deque(maxlen=stored)  # least recently used first
        self.name = name
        self.app = Starlette(
            routes=[
                Route("/v1/models", self.models),
                Route("/v1/chat/completions", self.completions, methods=["POST"]),
            ],
            exception_handlers={foveate.FoveateError: refused},
        )

    async def models(self, request):
        """List the one model."""
        model = {"id": self.name, "object": "model", "created": 0, "owned_by": "foveate"}
        return JSONResponse({"object": "list", "data": [model]})

    async def completions(self, request):
        """Answer a conversation, as one JSON object or as server-sent events."""
        try:
            body = await request.json()
        except ValueError as error:
            raise InvalidInput(f"the request's body is no JSON: {error}") from None
        messages, options = checked(body)
        tools = body.get("tools") or []
        # in a thread, because it decodes images; errors raise here, before a response begins
        chat, stream = await asyncio.to_thread(self.start, messages, tools, options)
        pieces = AsyncAnswerStream(lambda: stream)
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time())}
        head["model"] = self.name
        if body.get("stream"):
            with_usage = (body.get("stream_options") or {}).get("include_usage")
            events = self.events(head, chat, pieces, with_usage)
            return StreamingResponse(events, media_type="text/event-stream")
        answer = await pieces
        self.chats.append(chat)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": answer.text},
            "finish_reason": REASONS[answer.ended],
        }
        usage = usage_of(answer)
        return JSONResponse(
            {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        )

    def start(self, messages, tools, options):
        """Begin an answer on a fork of the stored chat that shares the longest beginning."""
        counts = [(chat.reusable_tokens(messages, tools), chat) for chat in tuple(self.chats)]
        reused, best = max(counts, key=lambda count: count[0], default=(0, None))
        if reused:
            self.touch(best)
        chat = best.fork() if reused else self.new_chat()
        return chat, chat.complete(messages, tools=tools, stream=True, **options)

    def touch(self, chat):
        """Mark a stored chat as used last, unless another request dropped it."""
        try:
            self.chats.remove(chat)
        except ValueError:
            return
        self.chats.append(chat)

    async def events(self, head, chat, pieces, with_usage):
        """Yield an answer as server-sent events. If the client leaves, the answer stops."""

        def event(delta, reason=None):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            chunk = {**head, "object": "chat.completion.chunk", "choices": [choice]}
            return f"data: {json.dumps(chunk)}\n\n"

        yield event({"role": "assistant", "content": ""})
        async for piece in pieces:
            yield event({"content": piece})
        answer = await pieces
        self.chats.append(chat)
        yield event({}, REASONS[answer.ended])
        if with_usage:
            usage = usage_of(answer)
            chunk = {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}
            yield f"data: {json.dumps(chunk)}\n\n"
        yield "data: [DONE]\n\n"


async def refused(request, error):
    """Report an error as OpenAI's API does."""
    content = {"message": str(error), "type": "invalid_request_error", "param": None, "code": None}
    return JSONResponse({"error": content}, status_code=400)


def checked(body):
    """Return the messages of a request, and arguments of ``generate``."""
    if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
        raise InvalidInput("the request needs messages, a list.")
    for name in UNSUPPORTED:
        if body.get(name):
            raise InvalidInput(f"{name} is not supported by this server: leave it out.")
    if (body.get("n") or 1) != 1:
        raise InvalidInput("n is not supported by this server: send several requests.")
    if not isinstance(body.get("tools") or [], list):
        raise InvalidInput("tools is a list.")
    options = {}
    if limit := body.get("max_completion_tokens") or body.get("max_tokens"):
        options["max_new_tokens"] = number(limit, "max_completion_tokens", int)
    if (temperature := body.get("temperature")) is not None:
        options["do_sample"] = number(temperature, "temperature") > 0
        if temperature > 0:
            options["temperature"] = float(temperature)
            options["top_p"] = float(number(body.get("top_p") or 1, "top_p"))
    return [checked_message(message) for message in body["messages"]], options


def number(value, name, kind=int | float):
    """Return a number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, kind) or value < 0:
        raise InvalidInput(f"{name} is {value!r:.80}: give a number of 0 or more.")
    return value


def checked_message(message):
    """Refuse what would let a client read this machine's files or its network."""
    content = message.get("content") if isinstance(message, dict) else None
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict) or part.get("type") not in PARTS:
            raise InvalidInput(f"parts of messages are of type {' or '.join(PARTS)} here.")
        if part["type"] == "image_url":
            source = part.get("image_url")
            url = source.get("url") if isinstance(source, dict) else source
            if set(part) - {"type", "image_url"} or not str(url).startswith("data:"):
                raise InvalidInput("images are data: URLs here, such as data:image/png;base64,...")
    if content is not None and not isinstance(content, str | list):
        raise InvalidInput("a message's content is a text or a list of parts.")
    is_developers = isinstance(message, dict) and message.get("role") == "developer"
    return {**message, "role": "system"} if is_developers else message


def usage_of(answer):
    """Return the tokens of a request in the API's names."""
    prompt = answer.usage.read + answer.usage.reused
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer.usage.generated,
        "total_tokens": prompt + answer.usage.generated,
        "prompt_tokens_details": {"cached_tokens": answer.usage.reused},
    }


def main():
    """Serve the demo model; for another one, change the line that loads it."""
    parser = argparse.ArgumentParser(description="OpenAI's chat-completions API.")
    parser.add_argument("--host", default="127.0.0.1", help="Address to listen on.")
    parser.add_argument("--port", type=int, default=8000, help="Port to listen on.")
    parser.add_argument("--policy", default="recommended:budget=20%", help="Policy spec.")
    parser.add_argument("--stored", type=int, default=16, help="Number of stored answers.")
    options = parser.parse_args()
    model, processor = vision.load()
    numbered = {"add_vision_id": True}  # so that a second image does not rename the first
    server = Server(
        model, processor, options.policy, "demo", stored=options.stored, template_kwargs=numbered
    )
    uvicorn.run(server.app, host=options.host, port=options.port)


if __name__ == "__main__":
    main()
