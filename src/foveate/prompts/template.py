"""Rendering of conversations with a chat template: complete, or the part of one turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from foveate.errors import InvalidInput, InvalidParameter
from foveate.prompts.messages import Message, parts_of, text_of
from foveate.prompts.special_tokens import ANSWER, Literals, probe, tokenizer_of

SET_HERE = (
    "messages",
    "conversation",
    "add_generation_prompt",
    "continue_final_message",
    "tokenize",
    "return_dict",
    "return_tensors",
    "return_assistant_tokens_mask",
    "padding",
    "truncation",
    "max_length",
    "processor_kwargs",
    "tokenizer_kwargs",
    "sanitize_control_tokens",
)
"""Arguments of ``apply_chat_template`` that Foveate sets, or that concern only tokenization."""


class Wording:
    """Renderer of conversations with a processor's chat template.

    Args:
        processor: a processor, or the tokenizer of a text-only model.
        template: more arguments of ``apply_chat_template`` (``tools``, ``enable_thinking``).

    Raises:
        InvalidParameter: an argument that Foveate sets itself.
        InvalidInput: the chat template is missing, or renders neither strings nor parts.
    """

    def __init__(self, processor: Any, template: Mapping[str, Any]):
        self.processor, self.template = processor, dict(template)
        self.literals = Literals(processor)
        if not chat_template_of(processor):
            raise InvalidInput(
                f"this {type(processor).__name__} has no chat template, which a conversation "
                "needs: set its chat_template."
            )
        check_not_set_here(template)
        self._in_parts: dict[str, bool] = {}  # by role: True if texts must be parts of a list
        for role in ("user", "assistant"):
            self._in_parts[role] = self._takes_parts(role)

    def formed(self, message: Message) -> dict[str, Any]:
        """Return the message in the template's form: text as a string, or as parts of a list."""
        parts = parts_of(message)
        if all(part["type"] == "text" for part in parts):
            return {**message, **self._text(str(message["role"]), text_of(message))}
        return {**message, "content": parts}

    def render(self, messages: Sequence[Message]) -> str:
        """Render the conversation with a generation prompt; special tokens in texts are marked."""
        return self._rendered([self._plain(message) for message in messages])

    def around(self, messages: Sequence[Message], answer: int) -> tuple[str, str]:
        """Return the text before and after the answer that is message number ``answer``."""
        return self._around([self._plain(message) for message in messages], answer)

    def split_end(self, messages: Sequence[Message]) -> tuple[str, str]:
        """Return the rendered text up to the end of the latest message, and the rest."""
        *others, last = [self._plain(message) for message in messages]
        content = last["content"]
        if isinstance(content, str):
            last["content"] = content + ANSWER
        elif content[-1]["type"] == "text":
            content[-1] = {**content[-1], "text": content[-1]["text"] + ANSWER}
        else:
            content.append({"type": "text", "text": ANSWER})
        before, _, after = self._rendered([*others, last]).rpartition(ANSWER)
        return before, after

    def check_words(
        self,
        new: Sequence[Message],
        rendered: str,
        old: Sequence[Message] = (),
        answer: int | None = None,
    ) -> None:
        """Raise InvalidInput if the template drops a new message or changes a user's text.

        Args:
            new: the messages of this turn.
            rendered: their rendered text.
            old: the messages before.
            answer: the index of the old message after which the text is new; None if all is new.
        """
        messages = (*old, *new)
        plain = [self._plain(message) for message in messages]

        def renders(probes: list[dict[str, Any]]) -> str:
            return self._rendered(probes) if answer is None else self._around(probes, answer)[1]

        check_kept(messages, plain, renders, since=len(old))
        everything = squashed(rendered)
        for message in new:
            texts = [part["text"] for part in parts_of(message) if part["type"] == "text"]
            kept = (squashed(self.literals.marked(text)) in everything for text in texts)
            if message["role"] == "user" and not all(kept):
                raise InvalidInput(
                    f"the chat template changes the text {text_of(message)!r:.80}: use a template "
                    "that keeps users' texts."
                )

    def _around(self, plain: list[dict[str, Any]], answer: int) -> tuple[str, str]:
        plain[answer] = {"role": "assistant", **self._text("assistant", ANSWER)}
        before, mark, after = self._rendered(plain).rpartition(ANSWER)
        if not mark:
            raise InvalidInput(
                "the chat template leaves out an earlier answer, so the text after it cannot be "
                'found. Use rewrites="follow", or a template that renders every message.'
            )
        return before, after

    def _rendered(self, messages: Sequence[Message]) -> str:
        return render(self.processor, messages, self.template)

    def _plain(self, message: Message) -> dict[str, Any]:
        """Return a message without its pixels, in the template's form."""
        parts = parts_of(message)
        rest = {k: self.literals.marked_in(v) for k, v in message.items() if k != "content"}
        role = str(message["role"])
        kind = next((part["type"] for part in parts if part["type"] != "text"), None)
        if kind is None:
            return {**rest, **self._text(role, self.literals.marked(text_of(message)))}
        if not self._in_parts["user"]:
            raise InvalidInput(
                f"this {type(self.processor).__name__} reads text only, and a message has "
                f"{kind!r}: leave it out, or use a vision-language model with its processor."
            )
        return {**rest, "content": [plain_part(part, self.literals) for part in parts]}

    def _text(self, role: str, text: str) -> dict[str, Any]:
        parts = self._in_parts["assistant" if role == "assistant" else "user"]
        return {"content": [{"type": "text", "text": text}] if parts else text}

    def _takes_parts(self, role: str) -> bool:
        """Return True if the template needs texts as parts of a list.

        LLaVA's templates silently drop strings; those of text models refuse parts, or print them.
        """
        before = [{"role": "user", **self._text("user", "x")}] if self._in_parts else []
        reason = "it drops them"
        for parts in (True, False):
            content = [{"type": "text", "text": ANSWER}] if parts else ANSWER
            try:
                text = self._rendered([*before, {"role": role, "content": content}])
            except InvalidInput as error:
                reason = str(error)
                continue
            if ANSWER in text and "'type'" not in text:
                return parts
        raise InvalidInput(
            f"the chat template cannot render plain messages of the role {role!r}: {reason}"
        )


def render(
    processor: Any, messages: Sequence[Message], template: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """Render messages with the processor's chat template, with the generation prompt.

    Raises:
        InvalidInput: the template refuses them, or is missing.
    """
    try:
        text: str = processor.apply_chat_template(
            list(messages), **template, tokenize=False, add_generation_prompt=True
        )
    except InvalidInput:
        raise
    except Exception as error:  # a template may raise anything, or fail anywhere
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InvalidInput(f"the chat template refuses this conversation: {reason}") from error
    return text


def plain_part(part: Mapping[str, Any], literals: Literals) -> dict[str, Any]:
    """Return a part without its pixels, with marks for special tokens in its text."""
    kind = part["type"]
    return (
        {"type": kind, "text": literals.marked(part["text"])} if kind == "text" else {"type": kind}
    )


def chat_template_of(processor: Any) -> Any:
    """Return the chat template of a processor or of its tokenizer, or None."""
    own = getattr(processor, "chat_template", None)
    return own or getattr(tokenizer_of(processor), "chat_template", None)


def check_not_set_here(arguments: Iterable[str]) -> None:
    """Raise InvalidParameter for an argument of ``apply_chat_template`` that Foveate sets."""
    for name in arguments:
        if name in SET_HERE:
            raise InvalidParameter(
                f"{name}=... cannot be passed to the chat template, because Foveate sets it: leave "
                f"{name!r} out."
            )


def check_kept(
    messages: Sequence[Message],
    plain: Sequence[dict[str, Any]],
    renders: Callable[[list[dict[str, Any]]], str],
    since: int = 0,
) -> None:
    """Raise InvalidInput if the template drops a message's text.

    Args:
        messages: the messages.
        plain: the same messages in the template's form.
        renders: a function that renders messages in the template's form.
        since: index of the first message to check.
    """
    texts = {number: text_of(messages[number]) for number in range(since, len(messages))}
    probes = list(plain)
    for number, text in texts.items():
        if text.strip():  # templates may strip, escape or shorten a text, but not a probe
            probes[number] = _with_text(plain[number], probe(number))
    rendered = renders(probes)
    for number, text in texts.items():
        if text.strip() and probe(number) not in rendered:
            raise InvalidInput(
                f"the chat template drops a message of the role {messages[number]['role']!r} here, "
                f"so the model would not see {text!r:.80}: put it in a user's message, or begin a "
                "new conversation with it."
            )


def _with_text(message: dict[str, Any], text: str) -> dict[str, Any]:
    """Return a plain message whose text is replaced."""
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": text}
    parts = [{**part, "text": text} if part["type"] == "text" else part for part in content]
    return {**message, "content": parts}


def squashed(text: str) -> str:
    """Remove white space, which many templates change after a generation prompt."""
    return "".join(text.split())
