"""The text around the frames of a stream, as a processor's chat template renders it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from foveate.errors import InvalidInput
from foveate.prompts.special_tokens import Literals
from foveate.prompts.template import check_kept, check_not_set_here, render

_QUESTION = "\ufffc"  # stands for the question while a template is looked at


class Words(NamedTuple):
    """What a stream reads beside pixels: ``opening`` once, ``frame`` with every image, ``closing``
    with a question. In ``frame``, "{number}" is the image's number from 1 and "{time}" the words of
    its time, if it has one; in ``closing``, "{question}" is the question.
    """

    opening: str
    frame: str
    closing: str

    @classmethod
    def of(cls, processor: Any, system: str | None = None, **template: Any) -> Words:
        """Those of a chat in which a user shows images and then asks.

        Args:
            processor: with a chat template.
            system: the system prompt; left out, the template's own.
            **template: more arguments of ``apply_chat_template``.

        Raises:
            InvalidParameter: an argument that is set here.
            InvalidInput: no chat template, or one that words several images otherwise than one,
                so that no image has words of its own.
        """
        check_not_set_here(template)
        texts = [_asked_of(processor, system, images, template) for images in (1, 2, 3)]
        one, two, three = texts
        same = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
        size = len(two) - len(one)
        opening, image, closing = one[: same - size], two[same - size : same], one[same:]
        repeats = [opening + image * n + closing for n in (1, 2, 3)]
        if size < 1 or repeats != [one, two, three] or _QUESTION not in closing:
            raise InvalidInput(
                "this chat template words one image and several in ways of its own (it numbers "
                "them, or asks between them), so a stream does not know the words of a frame. "
                f"Give words=foveate.stream.Words(opening, frame, closing); one image is {one!r}."
            )
        return cls(opening, "{time}" + image, closing.replace(_QUESTION, "{question}"))

    def of_frame(self, number: int, time: int | float | None) -> str:
        """Return the text of an image; ``time`` is in seconds."""
        time_text = "" if time is None else f"<{time:.1f} seconds>"
        return self.frame.replace("{number}", str(number)).replace("{time}", time_text)

    def of_question(self, question: str) -> str:
        """Return the text that ends the prompt."""
        return self.closing.replace("{question}", question)


def _asked_of(processor: Any, system: str | None, images: int, template: Mapping[str, Any]) -> str:
    parts = [{"type": "image"}] * images + [{"type": "text", "text": _QUESTION}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts}]
    if system is not None:
        text = Literals(processor).marked(system)
        messages.insert(0, {"role": "system", "content": [{"type": "text", "text": text}]})
    try:
        check_kept(messages, messages, lambda probes: render(processor, probes, template))
        return render(processor, messages, template)
    except InvalidInput as error:
        raise InvalidInput(
            f"{str(error).rstrip('.')}. Give words=foveate.stream.Words(opening, frame, closing)."
        ) from error
