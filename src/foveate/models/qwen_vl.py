"""Qwen-VL (the first, 2023): the text model is transformers' Qwen2, the eye is our own.

Its text model scales queries by the logarithm of their position, and changes its rotary base, past
the trained length (2,048 tokens). Qwen2 does neither, so longer sequences are refused. The paper is
arXiv:2308.12966.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from foveate.errors import InvalidInput


class QwenVLConfig(LlavaConfig):  # type: ignore[no-untyped-call]
    """``vision_config`` is a ``QwenVLVisionConfig``, ``text_config`` a ``Qwen2Config``."""

    model_type = "foveate_qwen_vl"

    def __init__(self, **options: Any):
        super().__init__(**options)


class QwenVLModel(LlavaModel):
    """The model without its head."""

    config_class = QwenVLConfig

    def __init__(self, config: QwenVLConfig):
        super().__init__(config)
        # the eye's tokens have the text model's width
        self.multi_modal_projector = nn.Identity()  # type: ignore[assignment]
        self.post_init()  # type: ignore[no-untyped-call]

    def get_image_features(
        self, pixel_values: Tensor, **options: Any
    ) -> BaseModelOutputWithPooling:
        """``pooler_output`` is a list of the images' tokens, [tokens, hidden] each."""
        seen = self.vision_tower(pixel_values)
        tokens: Any = list(seen.pooler_output)  # as LlavaModel hands them on
        return BaseModelOutputWithPooling(seen.last_hidden_state, tokens)

    def forward(self, input_ids: Tensor | None = None, **inputs: Any) -> Any:
        """As LLaVA's.

        Raises:
            InvalidInput: more tokens than the model was trained on.
        """
        self._check_length(input_ids, inputs)
        return super().forward(input_ids, **inputs)

    def _check_length(self, input_ids: Tensor | None, inputs: dict[str, Any]) -> None:
        given = input_ids if input_ids is not None else inputs.get("inputs_embeds")
        cache = inputs.get("cache", inputs.get("past_key_values"))
        past = 0 if cache is None else cache.get_seq_length()
        most: int = self.config.text_config.max_position_embeddings  # type: ignore[union-attr]
        if given is not None and not torch.compiler.is_compiling() and past + given.shape[1] > most:
            raise InvalidInput(
                f"the sequence has {past + given.shape[1]} tokens, and Qwen-VL reads as its "
                f"authors' code only up to {most}: past that, theirs scales queries by their "
                "position and changes the rotary base. Ask about less, or for a shorter answer."
            )


class QwenVLForConditionalGeneration(LlavaForConditionalGeneration):
    """The model that generates."""

    config_class = QwenVLConfig

    def __init__(self, config: QwenVLConfig):
        super(LlavaForConditionalGeneration, self).__init__(config)
        self.model = QwenVLModel(config)
        text = config.text_config
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)  # type: ignore[union-attr]
        self.post_init()  # type: ignore[no-untyped-call]
