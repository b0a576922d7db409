"""Qwen-VL (the first, 2023): transformers' Qwen2 as text model, with a vision tower of our own.

Past the trained length (2,048 tokens) its text model scales queries by the logarithm of their
position, and changes its rotary base. Qwen2 does neither, so longer sequences are refused.
Source: arXiv:2308.12966.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from foveate.errors import InvalidInput


class QwenVLConfig(LlavaConfig):  # type: ignore[no-untyped-call]
    """Configuration with a ``QwenVLVisionConfig`` as vision and a ``Qwen2Config`` as text part."""

    model_type = "foveate_qwen_vl"

    def __init__(self, **options: Any):
        super().__init__(**options)


class QwenVLModel(LlavaModel):
    """Qwen-VL without its language-model head."""

    config_class = QwenVLConfig

    def __init__(self, config: QwenVLConfig):
        super().__init__(config)
        # the vision tower's tokens already have the text model's width
        self.multi_modal_projector = nn.Identity()  # type: ignore[assignment]
        self.post_init()  # type: ignore[no-untyped-call]

    def get_image_features(
        self, pixel_values: Tensor, **options: Any
    ) -> BaseModelOutputWithPooling:
        """Return the vision tower's output, with a list of each image's tokens [tokens, hidden] as
        ``pooler_output``.
        """
        output = self.vision_tower(pixel_values)
        tokens: Any = list(output.pooler_output)  # a list, as LlavaModel returns it
        return BaseModelOutputWithPooling(output.last_hidden_state, tokens)

    def forward(self, input_ids: Tensor | None = None, **inputs: Any) -> Any:
        """Run LLaVA's forward pass after a check of the length.

        Raises:
            InvalidInput: more tokens than the trained length.
        """
        self._check_length(input_ids, inputs)
        return super().forward(input_ids, **inputs)

    def _check_length(self, input_ids: Tensor | None, inputs: dict[str, Any]) -> None:
        sequence = input_ids if input_ids is not None else inputs.get("inputs_embeds")
        cache = inputs.get(
            "cache", inputs.get("past_key_values")
        )  # "cache" since transformers 5.24
        past = 0 if cache is None else cache.get_seq_length()
        limit: int = self.config.text_config.max_position_embeddings  # type: ignore[union-attr]
        if (
            sequence is not None
            and not torch.compiler.is_compiling()
            and past + sequence.shape[1] > limit
        ):
            raise InvalidInput(
                f"the sequence has {past + sequence.shape[1]} tokens, but Qwen-VL matches its "
                f"authors' code only up to {limit}: past that, theirs scales queries by their "
                "position and changes the rotary base. Shorten the prompt or the answer."
            )


class QwenVLForConditionalGeneration(LlavaForConditionalGeneration):
    """Qwen-VL with its language-model head."""

    config_class = QwenVLConfig

    def __init__(self, config: QwenVLConfig):
        super(LlavaForConditionalGeneration, self).__init__(config)
        self.model = QwenVLModel(config)
        text = config.text_config
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)  # type: ignore[union-attr]
        self.post_init()  # type: ignore[no-untyped-call]
