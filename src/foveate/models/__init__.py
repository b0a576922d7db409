"""Models from the papers that transformers lacks, as classes of transformers.

Importing this package registers them with the ``Auto`` classes. Their directories are written by
``foveate convert``; everything else, compression included, treats them like any other model.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForImageTextToText,
    AutoProcessor,
)

from foveate.models.mobilevlm import MobileVLMConfig, MobileVLMForConditionalGeneration
from foveate.models.processing import ImageSpanProcessor
from foveate.models.qwen_vl import QwenVLConfig, QwenVLForConditionalGeneration
from foveate.models.qwen_vl_vision import QwenVLVisionConfig, QwenVLVisionModel

__all__ = [
    "ImageSpanProcessor",
    "MobileVLMConfig",
    "MobileVLMForConditionalGeneration",
    "QwenVLConfig",
    "QwenVLForConditionalGeneration",
    "QwenVLVisionConfig",
    "QwenVLVisionModel",
]

for _config in (MobileVLMConfig, QwenVLConfig, QwenVLVisionConfig):
    AutoConfig.register(_config.model_type, _config)
AutoModel.register(QwenVLVisionConfig, QwenVLVisionModel)
AutoModelForImageTextToText.register(MobileVLMConfig, MobileVLMForConditionalGeneration)
AutoModelForImageTextToText.register(QwenVLConfig, QwenVLForConditionalGeneration)
AutoProcessor.register(QwenVLConfig, ImageSpanProcessor)  # type: ignore[no-untyped-call]
