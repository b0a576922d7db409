"""Prompt text that lmms-eval leaves out of chat models' messages.

Its tasks build a text for each document: ``--system_instruction``, the task's description, examples
(``--num_fewshot``), the question. Messages are built from the document separately and contain only
the question; those of tasks without images also contain description and examples.
"""

from __future__ import annotations

from typing import Any

from foveate.errors import InvalidInput


def instruction(context: Any, task: Any, doc: Any) -> str:
    """Return the text of ``--system_instruction``: the part of ``context`` before the task's own
    text.

    Args:
        context: the text that lmms-eval built for the document.
        task: lmms-eval's, with ``config`` and ``fewshot_context``.
        doc: the document.

    Raises:
        InvalidInput: examples that the messages lack, or an instruction before examples. Examples
            are drawn anew for every text, so the end of the instruction cannot be found.
    """
    config, plain = task.config, task.fewshot_context(doc=doc, num_fewshot=0)
    if not isinstance(context, str) or not isinstance(plain, str):
        return ""
    if config.num_fewshot:
        _check_examples(context, task, doc, plain)
        return ""
    before = context.removesuffix(plain) if context.endswith(plain) else ""
    return before.removesuffix(config.fewshot_delimiter or "") if config.description else before


def _check_examples(context: str, task: Any, doc: Any, plain: str) -> None:
    config = task.config
    if config.doc_to_messages is not None or config.doc_to_visual is not None:
        raise InvalidInput(
            f"task {config.task} has num_fewshot={config.num_fewshot}, but lmms-eval adds no "
            "examples to the messages of a task with images or with its own messages. Leave "
            "--num_fewshot out, or set it to 0 in the task."
        )
    description = plain.removesuffix(str(task.doc_to_text(doc)))
    begins = [f"{description}{task.doc_to_text(document)}" for document in task.sampler.docs]
    if not any(context.startswith(begin) for begin in begins):
        raise InvalidInput(
            f"task {config.task} has num_fewshot={config.num_fewshot}, and lmms-eval leaves "
            "--system_instruction out of its messages. Give it in --model_args instead, as "
            "system_prompt='...'."
        )
