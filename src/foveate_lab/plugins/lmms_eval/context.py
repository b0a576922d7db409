"""What lmms-eval words for models that read one text, and leaves out of chat models' messages.

Its tasks build a text for each document: what ``--system_instruction`` says, the task's
description, examples (``--num_fewshot``), the question. Messages are built from the document once
more, and have of all that the question alone; those of tasks without images have description and
examples, too.
"""

from __future__ import annotations

from typing import Any

from foveate.errors import InvalidInput


def instruction(context: Any, task: Any, doc: Any) -> str:
    """What ``--system_instruction`` says: what stands before the text of the task alone.

    Args:
        context: the text that was built for the document.
        task: lmms-eval's, with ``config`` and ``fewshot_context``.
        doc: the document.

    Raises:
        InvalidInput: examples that the messages do not have, or an instruction before examples,
            which are drawn anew for every text, so that nothing tells where it ends.
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
            f"task {config.task} has num_fewshot={config.num_fewshot}, and lmms-eval puts no "
            "examples into the messages of a task that has images or words its messages itself: "
            "the answers would be to the question alone. Leave --num_fewshot out, or set it to 0 "
            "in the task."
        )
    description = plain.removesuffix(str(task.doc_to_text(doc)))
    begins = [f"{description}{task.doc_to_text(one)}" for one in task.sampler.docs]
    if not any(context.startswith(begin) for begin in begins):
        raise InvalidInput(
            f"task {config.task} has num_fewshot={config.num_fewshot}, and lmms-eval leaves "
            "--system_instruction out of its messages. Give it in --model_args instead, as "
            "system_prompt='...'."
        )
