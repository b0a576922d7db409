"""The demo model in vLLM: what vLLM's LLaVA lacks for it is told here.

vLLM takes a LLaVA with a Pixtral tower for Pixtral itself, whose prompts have a token behind every
row of patches, and whose images keep their size. The demo model has no such tokens and scales
images itself, so its processor is named here; the model's class is vLLM's own.
"""

from vllm import ModelRegistry
from vllm.model_executor.models.llava import (
    BaseLlavaProcessingInfo,
    LlavaDummyInputsBuilder,
    LlavaForConditionalGeneration,
)
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFieldConfig
from vllm.multimodal.parse import ImageSize
from vllm.multimodal.processing import BaseMultiModalProcessor, PromptReplacement

from foveate_demo.processor import COLUMNS, IMAGE, MAX_ROWS, PATCH, DemoProcessor

ARCHITECTURE = "FoveateDemo"


class Info(BaseLlavaProcessingInfo):
    def get_hf_processor(self, **options):
        return DemoProcessor(self.get_tokenizer())

    def get_image_size_with_most_features(self):
        return ImageSize(width=PATCH * COLUMNS, height=PATCH * MAX_ROWS)


class Dummies(LlavaDummyInputsBuilder):
    def get_dummy_text(self, mm_counts):
        return IMAGE * mm_counts.get("image", 0)


class Processor(BaseMultiModalProcessor):
    def _get_hf_mm_text(self, mm_counts):
        return DemoProcessor.image_token * mm_counts["image"]

    def _postprocess_hf_mm_data(self, mm_data, hf_processor_mm_kwargs, processed_data):
        sizes = processed_data.get("image_sizes", ())  # without the padding to the highest
        if len(sizes):
            processed_data["pixel_values"] = [
                pixels[:, :height, :width]
                for pixels, (height, width) in zip(
                    processed_data["pixel_values"], sizes.tolist(), strict=True
                )
            ]
        return processed_data

    def _get_mm_fields_config(self, hf_inputs, hf_processor_mm_kwargs):
        return {"pixel_values": MultiModalFieldConfig.batched("image")}

    def _get_prompt_updates(self, mm_items, hf_processor_mm_kwargs, out_mm_kwargs):
        token = self.info.get_hf_config().image_token_index

        def tokens(index):
            pixels = out_mm_kwargs["image"][index]["pixel_values"].data
            return [token] * (COLUMNS * pixels.shape[1] // PATCH)

        return [PromptReplacement(modality="image", target=[token], replacement=tokens)]


@MULTIMODAL_REGISTRY.register_processor(Processor, info=Info, dummy_inputs=Dummies)
class FoveateDemo(LlavaForConditionalGeneration):
    """The same model; its images are prepared by ``Processor``."""


def register():
    """Makes ``ARCHITECTURE`` known to vLLM in this process."""
    ModelRegistry.register_model(ARCHITECTURE, FoveateDemo)


def asked(text, images):
    """A prompt of the demo model's processor, as vLLM takes it."""
    return {
        "prompt": text.replace(DemoProcessor.image_token, IMAGE),
        "multi_modal_data": {"image": list(images)},
    }
