"""What is said of the prompt that comes next: its length, its ids, where frames of videos begin,
which of its tokens are visual. A call is told it, and forgets it when it is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig

from foveate.errors import InvalidInput, UnsupportedModel
from foveate.hf.layer.state import CacheState, Ongoing
from foveate.hf.model.modality import given_visual_tokens, starts_in_runs, visual_tokens


@dataclass
class Declared:
    """The length of a prompt: of the one that the first whole pass begins, and of no other. A pass
    that was cut short leaves it to the next.
    """

    tokens: int
    _pass: Ongoing | None = None
    _taken: bool = False

    def take(self, ongoing: Ongoing | None) -> None:
        """By the pass that begins its prompt (None: one that is traced)."""
        self._pass, self._taken = ongoing, True

    @property
    def spent(self) -> bool:
        """Whether its prompt has begun."""
        return self._taken and (self._pass is None or self._pass.done)


@dataclass
class GenerateCall:
    """One call of ``generate``. It may read more than its prompt, such as the negative prompt of
    ``guidance_scale``: the first cache is the prompt's.
    """

    cache: DynamicCache | None = None

    def is_about(self, cache: DynamicCache) -> bool:
        """Whether this is the prompt's cache."""
        if self.cache is None:
            self.cache = cache
        return cache is self.cache

    def check(self, model: nn.Module) -> None:
        """Raises UnsupportedModel if the decoder was never called."""
        if self.cache is None:
            raise UnsupportedModel(
                f"{type(model).__name__}.generate() answered without a call of the model's "
                "decoder, so nothing was compressed."
            )


@dataclass
class CallInputs:
    """By one call. ``ids`` are those of the tokens that a module around the decoder reads, and
    ``frames`` say where those of videos begin among them; ``prompt``, ``prompt_frames`` and
    ``length`` are of the prompt that ``generate`` answers, which is ``generation``; ``rereads`` is
    the cache whose prompt is being read again, ``of_tokens`` what is asked of the outputs, where
    tokens may be dropped. What it was not told, the call around it may have been.
    """

    outer: CallInputs | None = None
    ids: Tensor | None = None
    frames: Tensor | None = None
    prompt: Tensor | None = None
    prompt_frames: Tensor | None = None
    length: Declared | None = None
    generation: GenerateCall | None = None
    rereads: CacheState | None = None
    of_tokens: Any = None

    def of(self, name: str) -> CallInputs:
        """The innermost of these calls that was told this; the call itself if none was."""
        call_inputs: CallInputs | None = self
        while call_inputs is not None and getattr(call_inputs, name) is None:
            call_inputs = call_inputs.outer
        return self if call_inputs is None else call_inputs

    def of_pass(
        self, what: Literal["ids", "frames"], end: int | None, seen: int, given: Tensor
    ) -> Tensor | None:
        """Of a pass's tokens: what a module around the decoder was told of them, or ``generate`` of
        the prompt's; None where that is not one thing for every token that the decoder reads.
        """
        (rows, count), of_prompt = given.shape[:2], self.of("prompt")
        now: Tensor | None = getattr(self.of("ids"), what)
        if now is not None and now.shape == (rows, count):
            return now
        prompt = of_prompt.prompt if what == "ids" else of_prompt.prompt_frames
        if prompt is None or prompt.shape[1] != end or rows % prompt.shape[0]:
            return None
        return prompt[:, seen : seen + count].repeat_interleave(rows // prompt.shape[0], 0)

    def declare(
        self, config: PreTrainedConfig, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Notes the prompt's length and ids, as ``generate`` is given them. A model inside that
        generates knows the length best, and the one around it the ids.
        """
        ids = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        whole = kwargs.get("inputs_embeds") if ids is None else ids
        mask = kwargs.get("attention_mask")
        if isinstance(whole, Tensor) and whole.ndim >= 2:
            self.length = Declared(mask.shape[1] if mask is not None else whole.shape[1])
        if isinstance(ids, Tensor) and ids.ndim == 2:
            self.prompt = ids
            self.prompt_frames = starts_in_runs(config, ids, kwargs)


@dataclass
class NextPrompt:
    """What a block knows of the prompt that comes next, whichever call reads it: ``vision`` is
    which of its tokens are visual, ``expected`` its length where no call of ``generate`` says it.
    """

    config: PreTrainedConfig
    vision: Tensor | None
    expected: Declared | None = None

    def end(self, call_inputs: CallInputs, ongoing: Ongoing | None, seen: int, count: int) -> int:
        """The column at which the prompt ends that this pass of ``count`` tokens begins. Some
        models (GIT) put images before the text for which there are no ids, and which nobody counted
        who declared the prompt's length.

        Raises:
            InvalidInput: the cache has seen more than the length that was declared.
        """
        ids = call_inputs.of("ids").ids
        without_ids = 0 if ids is None else max(0, count - ids.shape[1])
        declared = call_inputs.of("length").length or self.expected
        if declared is None or declared.spent:
            return seen + count
        declared.take(ongoing)
        tokens = declared.tokens + without_ids
        if tokens <= seen:
            raise InvalidInput(
                f"the prompt was declared {tokens} tokens long, but the cache has seen {seen}."
            )
        return tokens

    def visual_tokens(
        self, call_inputs: CallInputs, end: int | None, seen: int, given: Tensor
    ) -> Tensor | None:
        """Which of a pass's tokens are visual, by what the caller told or by the ids; ``given`` are
        these, or embeddings.
        """
        rows, count = given.shape[:2]
        if self.vision is None or end is None or seen >= self.vision.shape[-1]:
            embedded = given.is_floating_point()
            ids = call_inputs.of_pass("ids", end, seen, given) if embedded else given
            return visual_tokens(self.config, ids)
        columns = slice(seen, min(end, seen + count))
        vision = given_visual_tokens(self.vision, rows, end, columns)
        drafted = count - vision.shape[1]
        return torch.nn.functional.pad(vision, (0, drafted)).to(given.device)
