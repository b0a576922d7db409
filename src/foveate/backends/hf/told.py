"""What a call was told of the prompt that it reads, and forgets when it is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from transformers import DynamicCache

from foveate.backends.hf.state import CacheState, Ongoing
from foveate.errors import UnsupportedModel


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
class Asked:
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
class Told:
    """By one call. ``ids`` are those of the tokens that a module around the decoder reads, and
    ``frames`` say where those of videos begin among them; ``prompt``, ``prompt_frames`` and
    ``length`` are of the prompt that ``generate`` answers, which is ``asked``; ``rereads`` is the
    cache whose prompt is being read again. What it was not told, the call around it may have been.
    """

    outer: Told | None = None
    ids: Tensor | None = None
    frames: Tensor | None = None
    prompt: Tensor | None = None
    prompt_frames: Tensor | None = None
    length: Declared | None = None
    asked: Asked | None = None
    rereads: CacheState | None = None

    def of(self, name: str) -> Told:
        """The innermost of these calls that was told this; the call itself if none was."""
        told: Told | None = self
        while told is not None and getattr(told, name) is None:
            told = told.outer
        return self if told is None else told

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
