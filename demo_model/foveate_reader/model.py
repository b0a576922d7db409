"""The reader: SmolLM2-135M-Instruct with the eyes of PP-OCRv6, joined as LLaVA was.

The processor runs the frozen detector and encoder, because the number of an image's tokens depends
on its text; ``pixel_values`` are their features. The model has a projector of them, and a low-rank
update (LoRA) of the language model's attention is added to its weights.
``weights/MODEL_CARD.md`` lists abilities and limits; the recipe is in the repository's
``demo_model/training/reader/``.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import (
    AutoModel,
    CLIPVisionConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaModel,
    PreTrainedConfig,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling

from foveate_demo import smollm2
from foveate_demo.processor import IMAGE
from foveate_demo.vision import add_low_rank
from foveate_reader.eye import BOX, KIND, PADDING, TEXT, load_eye, read_weights
from foveate_reader.networks import FEATURES, READABLE
from foveate_reader.processor import ReaderProcessor

NAME = "Foveate-Reader-0.14B"
_DETAIL = 128  # width of the projector's second branch
_BINS = 64  # positions on an image that are told apart, across and down


class ReaderConfig(LlavaConfig):  # type: ignore[no-untyped-call]
    """LLaVA's configuration; ``vision_config`` is empty, as the processor runs the encoder."""

    model_type = "foveate_reader"


class Projector(nn.Module):
    """Projector of visual tokens into the language model's embeddings.

    A column is read by the encoder's own head, and becomes the mean of its characters' embeddings;
    a second branch adds what characters do not tell. Embeddings of a token's kind and of its column
    and line on the image are added.
    """

    def __init__(self, width: int):
        super().__init__()
        self.read = nn.Linear(FEATURES, 1 + len(READABLE))
        self.characters = nn.Linear(1 + len(READABLE), width, bias=False)
        self.up = nn.Linear(FEATURES, _DETAIL)
        self.down = nn.Linear(_DETAIL, width)
        self.kind = nn.Embedding(4, width)
        self.across = nn.Embedding(_BINS, width)
        self.line = nn.Embedding(_BINS, width)

    def forward(self, tokens: Float[Tensor, "t v"]) -> Float[Tensor, "t c"]:
        features, kind = tokens[:, :FEATURES], tokens[:, KIND].long()
        left, top, right, bottom = tokens[:, BOX].float().clamp(0, 1).unbind(-1)
        x, y = (
            ((a + b) / 2 * _BINS).long().clamp(max=_BINS - 1)
            for a, b in ((left, right), (top, bottom))
        )
        seen = self.characters(self.read(features).softmax(-1))
        seen = seen + self.down(nn.functional.gelu(self.up(features)))
        seen = seen * (kind == TEXT)[:, None]
        projected: Tensor = seen + self.kind(kind) + self.across(x) + self.line(y)
        return projected


class ReaderModel(LlavaModel):
    """The reader without its language-model head."""

    def __init__(self, config: ReaderConfig):
        super(LlavaModel, self).__init__(config)
        text = config.text_config
        self.vision_tower = nn.Identity()
        self.multi_modal_projector = Projector(text.hidden_size)  # type: ignore[assignment, union-attr]
        self.language_model = AutoModel.from_config(text)  # type: ignore[no-untyped-call]
        self.post_init()  # type: ignore[no-untyped-call]

    def get_image_features(
        self, pixel_values: Float[Tensor, "n t v"], **options: Any
    ) -> BaseModelOutputWithPooling:
        """Return the embeddings of each image's tokens, without padding, as ``pooler_output``."""
        projector: Any = self.multi_modal_projector
        weights = projector.read.weight
        tokens = pixel_values.to(weights.device)
        tokens = tokens[tokens[..., KIND] != PADDING].to(weights.dtype)
        features: Any = (projector(tokens),)
        return BaseModelOutputWithPooling(pooler_output=features)


class ReaderForConditionalGeneration(LlavaForConditionalGeneration):
    """The reader with its language-model head."""

    config_class = ReaderConfig

    def __init__(self, config: ReaderConfig):
        super(LlavaForConditionalGeneration, self).__init__(config)
        self.model = ReaderModel(config)
        text = config.text_config
        self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)  # type: ignore[union-attr]
        self.post_init()  # type: ignore[no-untyped-call]


def load(
    dtype: torch.dtype = torch.float32, all_columns: bool = False
) -> tuple[ReaderForConditionalGeneration, ReaderProcessor]:
    """Load the reader and its processor, on the CPU and in evaluation mode.

    The language model is the demo's: see :func:`foveate_demo.smollm2.load`.

    Args:
        dtype: dtype of the model's weights. The processor's networks stay in float32.
        all_columns: keep columns without a new character, which the shipped weights have not
            learned to read: see :class:`foveate_reader.eye.Eye`.

    Raises:
        ModelNotFound: the language model or the reader's weights are missing.
    """
    language, tokenizer = smollm2.load(dtype)
    config = reader_config(language.config, tokenizer.vocab[IMAGE])
    with torch.device("meta"):
        build: Any = ReaderForConditionalGeneration._from_config
        model: ReaderForConditionalGeneration = build(config, attn_implementation="sdpa")
    projector = Projector(language.config.hidden_size)
    projector.load_state_dict(read_weights("projector.safetensors"))
    add_low_rank(language, read_weights("lora.safetensors"))
    model.model.multi_modal_projector = projector.to(dtype)
    model.model.language_model, model.lm_head = language.model, language.lm_head
    model.generation_config = language.generation_config
    model.eval()  # type: ignore[no-untyped-call]
    return model, ReaderProcessor(tokenizer, load_eye(all_columns))


def reader_config(text: PreTrainedConfig, image_token: int) -> ReaderConfig:
    """Return the configuration of the complete model, given the language model's."""
    return ReaderConfig(
        vision_config=CLIPVisionConfig(hidden_size=FEATURES, num_hidden_layers=0),
        text_config=text,
        image_token_index=image_token,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        tie_word_embeddings=True,
    )
