"""Facts about the next prompt: its length, its token ids, the first tokens of video frames, its
visual tokens. They belong to one call, and end with it.
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
    """Declared length of one prompt: the one that the next completed pass begins. A pass that was
    interrupted leaves the declaration to the next.
    """

    tokens: int
    _pass: Ongoing | None = None
    _taken: bool = False

    def take(self, ongoing: Ongoing | None) -> None:
        """Assign the length to the pass that begins the prompt (None: a traced pass)."""
        self._pass, self._taken = ongoing, True

    @property
    def spent(self) -> bool:
        """True once its prompt has begun."""
        return self._taken and (self._pass is None or self._pass.done)


@dataclass
class GenerateCall:
    """One call of ``generate``. It may read more than its prompt, such as the negative prompt of
    ``guidance_scale``: the first cache is the prompt's.
    """

    cache: DynamicCache | None = None

    def is_about(self, cache: DynamicCache) -> bool:
        """Return True if ``cache`` is the prompt's; the first cache becomes it."""
        if self.cache is None:
            self.cache = cache
        return cache is self.cache

    def check(self, model: nn.Module) -> None:
        """Raise UnsupportedModel if the decoder was never called."""
        if self.cache is None:
            raise UnsupportedModel(
                f"{type(model).__name__}.generate() answered without a call of the model's "
                "decoder, so nothing was compressed."
            )


@dataclass
class CallInputs:
    """Facts that one call knows about its inputs. A field that is None may be set in the ``outer``
    call.

    ``ids`` are the token ids that a module around the decoder reads, and ``frames`` mark the first
    tokens of video frames among them. ``prompt``, ``prompt_frames`` and ``length`` describe the
    prompt that ``generate`` answers; ``generation`` is that call of ``generate``. ``rereads`` is
    the cache whose prompt is being read again, ``of_tokens`` the outputs that the caller requests,
    where tokens may be dropped.
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
        """Return the innermost of these calls whose field ``name`` is set; the call itself if none
        is.
        """
        call_inputs: CallInputs | None = self
        while call_inputs is not None and getattr(call_inputs, name) is None:
            call_inputs = call_inputs.outer
        return self if call_inputs is None else call_inputs

    def of_pass(
        self, field: Literal["ids", "frames"], end: int | None, seen: int, tokens: Tensor
    ) -> Tensor | None:
        """Return the ids or frames of a pass's tokens: from the module around the decoder, or from
        ``generate``'s prompt. None if they do not match the tokens that the decoder reads.
        """
        (rows, count), of_prompt = tokens.shape[:2], self.of("prompt")
        own: Tensor | None = getattr(self.of("ids"), field)
        if own is not None and own.shape == (rows, count):
            return own
        prompt = of_prompt.prompt if field == "ids" else of_prompt.prompt_frames
        if prompt is None or prompt.shape[1] != end or rows % prompt.shape[0]:
            return None
        return prompt[:, seen : seen + count].repeat_interleave(rows // prompt.shape[0], 0)

    def declare(
        self, config: PreTrainedConfig, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Note the prompt's length and ids from the arguments of ``generate``. If a model inside
        generates as well, its length and the outer model's ids are used.
        """
        ids = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        sequence = kwargs.get("inputs_embeds") if ids is None else ids
        mask = kwargs.get("attention_mask")
        if isinstance(sequence, Tensor) and sequence.ndim >= 2:
            self.length = Declared(mask.shape[1] if mask is not None else sequence.shape[1])
        if isinstance(ids, Tensor) and ids.ndim == 2:
            self.prompt = ids
            self.prompt_frames = starts_in_runs(config, ids, kwargs)


@dataclass
class NextPrompt:
    """Facts that a context knows about the next prompt, whichever call reads it: ``vision`` marks
    its visual tokens, ``expected`` is its length if no call of ``generate`` declares it.
    """

    config: PreTrainedConfig
    vision: Tensor | None
    expected: Declared | None = None

    def end(self, call_inputs: CallInputs, ongoing: Ongoing | None, seen: int, count: int) -> int:
        """Return the column at which the prompt ends that this pass of ``count`` tokens begins.
        Some models (GIT) put images before the text that have no ids, so that a declared length
        does not count them.

        Raises:
            InvalidInput: the cache has seen more than the declared length.
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
        self, call_inputs: CallInputs, end: int | None, seen: int, tokens: Tensor
    ) -> Tensor | None:
        """Return a mask of the pass's visual tokens, from the caller's ``vision`` or from the ids.
        ``tokens`` are the pass's ids, or embeddings.
        """
        rows, count = tokens.shape[:2]
        if self.vision is None or end is None or seen >= self.vision.shape[-1]:
            embedded = tokens.is_floating_point()
            ids = call_inputs.of_pass("ids", end, seen, tokens) if embedded else tokens
            return visual_tokens(self.config, ids)
        columns = slice(seen, min(end, seen + count))
        vision = given_visual_tokens(self.vision, rows, end, columns)
        drafted = count - vision.shape[1]
        return torch.nn.functional.pad(vision, (0, drafted)).to(tokens.device)
