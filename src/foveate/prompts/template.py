"""Messages in the words of a chat template: of a conversation whole, and of its new part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foveate.errors import InvalidInput
from foveate.prompts.special_tokens import ANSWER, Literals, tokenizer_of

Message = Mapping[str, Any]
"""``{"role": "user", "content": TEXT or [parts]}``, as chat templates take them."""

_VISUAL = ("image", "image_url", "video")


class Wording:
    """How a processor's chat template words a conversation.

    Args:
        processor: a processor, or the tokenizer of a model that reads text only.
        template: what ``apply_chat_template`` is given besides (``tools``, ``enable_thinking``).

    Raises:
        InvalidInput: there is no chat template, or it words neither strings nor parts.
    """

    def __init__(self, processor: Any, template: Mapping[str, Any]):
        self.processor, self.template = processor, dict(template)
        self.literals = Literals(processor)
        chats = getattr(processor, "chat_template", None)
        if not (chats or getattr(tokenizer_of(processor), "chat_template", None)):
            raise InvalidInput(
                f"this {type(processor).__name__} has no chat template, so nothing says how a "
                "conversation is worded: set its chat_template."
            )
        self._in_parts: dict[str, bool] = {}  # of each role: whether texts are parts of a list
        for role in ("user", "assistant"):
            self._in_parts[role] = self._takes_parts(role)

    def formed(self, message: Message) -> dict[str, Any]:
        """The message as the template takes it: text in a string, or as a part of a list."""
        parts = parts_of(message)
        if all(part["type"] == "text" for part in parts):
            return {**message, **self._text(str(message["role"]), text_of(message))}
        return {**message, "content": parts}

    def whole(self, messages: Sequence[Message]) -> str:
        """The conversation, with an answer about to begin; special tokens in texts are marked."""
        return self._worded([self._plain(one) for one in messages])

    def around(self, messages: Sequence[Message], answer: int) -> tuple[str, str]:
        """What stands before and behind the answer that is message number ``answer``."""
        plain = [self._plain(one) for one in messages]
        plain[answer] = {"role": "assistant", **self._text("assistant", ANSWER)}
        before, mark, after = self._worded(plain).rpartition(ANSWER)
        if not mark:
            raise InvalidInput(
                "the chat template leaves an earlier answer out, so what follows it cannot be told "
                'from it. Use rewrites="follow", or a template that words every message.'
            )
        return before, after

    def split_end(self, messages: Sequence[Message]) -> tuple[str, str]:
        """The conversation, up to the end of its latest text and behind it."""
        *others, last = [self._plain(one) for one in messages]
        content = last["content"]
        if isinstance(content, str):
            last["content"] = content + ANSWER
        else:
            content[-1] = {**content[-1], "text": content[-1]["text"] + ANSWER}
        before, _, after = self._worded([*others, last]).rpartition(ANSWER)
        return before, after

    def check_words(self, new: Sequence[Message], worded: str) -> None:
        """Raises InvalidInput where a template drops what a user says."""
        said = squashed(worded)
        for message in new:
            for part in parts_of(message) if message["role"] == "user" else ():
                text = squashed(self.literals.marked(part.get("text") or ""))
                if text not in said:
                    raise InvalidInput(
                        f"the chat template does not word {part['text']!r:.80} as it was said."
                    )

    def _worded(self, messages: Sequence[Message]) -> str:
        return worded(self.processor, messages, self.template)

    def _plain(self, message: Message) -> dict[str, Any]:
        """A message without its pixels, in the form that the template takes."""
        parts = parts_of(message)
        rest = {k: v for k, v in message.items() if k != "content"}
        role = str(message["role"])
        if any(part["type"] != "text" for part in parts):
            if not self._in_parts["user"]:
                raise InvalidInput(
                    f"this {type(self.processor).__name__} reads text only, and a message brings "
                    f"{next(p['type'] for p in parts if p['type'] != 'text')!r}: leave it out, or "
                    "take a vision-language model with its processor."
                )
            return {**rest, "content": [self._part(part) for part in parts]}
        return {**rest, **self._text(role, self.literals.marked(text_of(message)))}

    def _part(self, part: Mapping[str, Any]) -> dict[str, Any]:
        if part["type"] == "text":
            return {"type": "text", "text": self.literals.marked(part["text"])}
        return {"type": "image" if part["type"] == "image_url" else part["type"]}

    def _text(self, role: str, text: str) -> dict[str, Any]:
        parts = self._in_parts["assistant" if role == "assistant" else "user"]
        return {"content": [{"type": "text", "text": text}] if parts else text}

    def _takes_parts(self, role: str) -> bool:
        """LLaVA's templates drop strings in silence, and those of text models refuse parts, or
        print them.
        """
        before = [{"role": "user", **self._text("user", "x")}] if self._in_parts else []
        for parts in (True, False):
            content = [{"type": "text", "text": ANSWER}] if parts else ANSWER
            try:
                text = self._worded([*before, {"role": role, "content": content}])
            except InvalidInput:
                continue
            if ANSWER in text and "'type'" not in text:
                return parts
        raise InvalidInput(f"the chat template words nothing that a {role} says in plain messages.")


def worded(processor: Any, messages: Sequence[Message], template: Mapping[str, Any]) -> str:
    """The messages in the words of the processor's chat template, with an answer about to begin.

    Raises:
        InvalidInput: the template refuses them, or there is none.
    """
    try:
        text: str = processor.apply_chat_template(
            messages, tokenize=False, **{"add_generation_prompt": True, **template}
        )
    except InvalidInput:
        raise
    except Exception as error:  # a template may raise anything, or fail anywhere
        said = " ".join(str(error).split()) or type(error).__name__
        raise InvalidInput(f"the chat template refuses this conversation: {said}") from error
    return text


def parts_of(message: Message) -> list[Mapping[str, Any]]:
    """What a message consists of.

    Raises:
        InvalidInput: no message, or a part that is none of text, image and video.
    """
    if not isinstance(message, Mapping) or "role" not in message:
        raise InvalidInput(f"{message!r:.80} is no message: give a dictionary with 'role'.")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content or ""}]
    parts = list(content)
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", *_VISUAL) or (kind == "text" and not isinstance(part["text"], str)):
            raise InvalidInput(
                f"a message has the part {part!r:.80}: parts are text, images and videos, such as "
                '{"type": "text", "text": "..."}.'
            )
    return parts


def text_of(message: Message) -> str:
    """The text of a message, without what else it brings."""
    return "".join(part["text"] for part in parts_of(message) if part["type"] == "text")


def squashed(text: str) -> str:
    """Without spaces and line ends, by which templates tell an answer's beginning from its end."""
    return "".join(text.split())
