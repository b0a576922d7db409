"""Plug-in for VLMEvalKit: a model with a compressed cache.

VLMEvalKit builds models by name from a table; :func:`register` adds one to it. Its models answer
``generate_inner(message, dataset)``, where a message is a list of ``{"type": "text" or "image",
"value": the text or the path of a file}`` in reading order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from foveate.data import lines
from foveate.errors import InvalidInput, InvalidParameter, MissingPackage
from foveate.prompts.prompt import Part, image_part, text_part
from foveate_lab.plugins.answerer import PluginAnswerer

try:
    from vlmeval.config import supported_VLM
    from vlmeval.vlm.base import BaseModel
except ImportError as error:
    raise MissingPackage(
        "This plug-in", "vlmeval", install="it comes with VLMEvalKit's repository, pip install -e ."
    ) from error


class Foveate(BaseModel):  # type: ignore[misc]  # Any: VLMEvalKit may not be installed
    """VLMEvalKit model that answers messages one by one, greedily.

    Args:
        pretrained: a directory, a hub id, or "demo".
        method: policy of the cache, for example "mixkv:budget=64".
        device: "cpu" or "cuda:0"; by default the GPU if there is one.
        max_new_tokens: maximum tokens of an answer.
        log: file for a JSON line per answer, with the bytes of the cache after compression and of
            the stock cache; VLMEvalKit's own results have no field for them.
        use_vllm: option of VLMEvalKit; must be false.
        trust_remote_code: run Python code that comes with the model.

    Raises:
        FoveateError: no such model or method, a budget that cannot be met, or vLLM.
    """

    INTERLEAVE = True  # VLMEvalKit then keeps images and text in order

    def __init__(
        self,
        pretrained: str,
        method: str,
        *,
        device: str | None = None,
        max_new_tokens: int = 2048,
        log: str | Path | None = None,
        use_vllm: bool = False,
        trust_remote_code: bool = False,
    ):
        if use_vllm:
            raise InvalidParameter(
                "use_vllm=True: caches are compressed in transformers. Leave --use-vllm out."
            )
        super().__init__()
        self.answerer = PluginAnswerer(pretrained, method, device, trust_remote_code)
        self.tokens, self.log = max_new_tokens, None if log is None else Path(log)

    def generate_inner(self, message: Sequence[Mapping[str, Any]], dataset: Any = None) -> str:
        """Answer a message.

        Raises:
            InvalidInput: content other than text and images, or an unreadable image.
        """
        parts = [_part(part) for part in message]
        answer = self.answerer([{"role": "user", "content": parts}], self.tokens)
        if self.log is not None:
            counts = {name: value for name, value in answer._asdict().items() if name != "text"}
            lines.append(self.log, {"dataset": dataset, **counts})
        return answer.text


def register(name: str, **arguments: Any) -> None:
    """Add a model with these arguments to VLMEvalKit's table, for ``run.py --model NAME``.

    Raises:
        InvalidParameter: the name is taken.
    """
    if name in supported_VLM:
        raise InvalidParameter(f"VLMEvalKit has a model named {name!r} already: choose another.")
    supported_VLM[name] = partial(Foveate, **arguments)


def _part(part: Mapping[str, Any]) -> Part:
    if part["type"] == "text":
        return text_part(part["value"])
    if part["type"] != "image":
        raise InvalidInput(f"a message with {part['type']}: only text and images are supported.")
    return image_part(part["value"])
