"""``foveate.Pipeline``: questions about a context that is read and compressed once."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from threading import Event
from typing import Any

from torch import nn

from foveate.chat.answering import Answerer, Conversation, read
from foveate.chat.generation import check_template_arguments, with_defaults
from foveate.compression.composition import BY_DEFAULT
from foveate.compression.composition import policy as policy_of
from foveate.errors import InvalidInput
from foveate.hf.attach.model_queue import enter
from foveate.policies.policy import Policy
from foveate.prompts.messages import Message, check_text, new_messages
from foveate.prompts.template import Wording

_OWN = ("system", "template_kwargs")
_OF_CALL = ("context", "question", "questions", "answer_prefix", "images", "policy")


class Pipeline:
    """Question answering about a compressed context, as kvpress's pipeline does it.

    The context is compressed before any question is known, and each question is answered from the
    compressed context alone, without the other questions.

    Args:
        model: a model that :func:`foveate.compress` takes.
        processor: its processor or tokenizer, with a chat template.
        system: the system message in front of every context.
        template_kwargs: arguments of ``apply_chat_template``, e.g. ``{"enable_thinking": False}``.
        **generate: arguments of ``model.generate`` for every answer; a call's own override them.

    Raises:
        InvalidInput: there is no chat template; an argument of ``generate`` that a pipeline sets
            itself.
        InvalidParameter: an unknown argument or template argument.
        FoveateError: as :func:`foveate.compress` raises.
    """

    def __init__(
        self,
        model: nn.Module,
        processor: Any,
        *,
        system: str | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        **generate: Any,
    ):
        self._model, self._processor, self._system = model, processor, system
        answerer = self._answerer("full")
        answerer.new_session()  # raises if the model cannot be compressed
        answerer.check(generate, "Pipeline(...)", _OWN, complete=False)
        check_template_arguments(template_kwargs or {}, processor)
        self._wording = Wording(processor, template_kwargs or {})
        self._defaults = dict(generate)

    def __call__(
        self,
        context: str | Sequence[Message],
        *,
        question: str | None = None,
        questions: Sequence[str] | None = None,
        answer_prefix: str = "",
        images: Any = (),
        policy: Policy | str = BY_DEFAULT,
        **generate: Any,
    ) -> dict[str, Any]:
        """Answer ``question``, or each of ``questions``.

        Args:
            context: the context to compress: a text, or messages, the last of which is a user's.
            question: a question, appended to the context in the same message.
            questions: several questions instead of one.
            answer_prefix: the beginning of every answer.
            images: images of any form (as in :meth:`foveate.Chat.say`), or a single one, in front
                of a context that is a text.
            policy: a policy or its spec.
            **generate: arguments of ``model.generate``; ``max_new_tokens`` defaults to 256.

        Returns:
            "answer" (text without the prefix) or "answers", and "stats" of the compressed context.

        Raises:
            InvalidInput: both or neither of question and questions; beams; or an error of the
                processor or template.
            InvalidParameter: an argument that neither the pipeline nor ``generate`` takes.
            FoveateError: as :func:`foveate.compress` raises.
        """
        each_question = _questions(question, questions)
        answerer, options = self._answerer(policy), with_defaults(self._defaults, generate)
        answerer.check(options, "Pipeline's call", _OF_CALL)
        with enter(self._model, sys._getframe()):
            read_context, after, stats = self._compress_context(answerer, context, images)
            answers = []
            for text in each_question:
                prompt = self._wording.literals.marked(text) + after + answer_prefix
                new = read(answerer.model, self._wording, prompt, (), begins=False)
                answer, _ = answerer.answer(read_context, new, options, Event(), rearm=False)
                answers.append(answer.text)
        result = {"answers": answers} if question is None else {"answer": answers[0]}
        return {**result, "stats": stats}

    def _answerer(self, policy: Policy | str) -> Answerer:
        return Answerer(self._model, self._processor, policy_of(policy))  # type: ignore[arg-type]

    def _compress_context(
        self, answerer: Answerer, context: str | Sequence[Message], images: Any
    ) -> tuple[Conversation, str, Any]:
        """Return the compressed context, the template's text after a question, and the stats."""
        messages = new_messages(context, images)
        if self._system is not None and all(m["role"] != "system" for m in messages):
            messages = ({"role": "system", "content": self._system}, *messages)
        messages = tuple(map(self._wording.formed, messages))
        before, after = self._wording.split_end(messages)
        self._wording.check_words(messages, before + after)
        new = read(answerer.model, self._wording, before, messages, begins=True)
        answer, compressed = answerer.read(Conversation(), new)
        return compressed, after, answer.stats


def _questions(question: str | None, questions: Sequence[str] | None) -> list[str]:
    """Return the questions as a list of texts; raises InvalidInput without any, or for both."""
    if (question is None) == (questions is None):
        raise InvalidInput("give either question or questions.")
    if questions is None:
        return [check_text(question, "question")]
    several = [questions] if isinstance(questions, str) else questions
    if not isinstance(several, Iterable):
        raise InvalidInput(f"questions is {questions!r:.80}: give a list of texts.")
    return [check_text(each, f"questions[{number}]") for number, each in enumerate(several)]
