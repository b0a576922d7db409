"""Processor for models that put an image's tokens between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, no_type_check

from transformers import BatchFeature, PreTrainedTokenizerBase, ProcessorMixin
from transformers.image_utils import make_flat_list_of_images

from foveate.errors import InvalidInput


class ImageSpanProcessor(ProcessorMixin):
    """Processor that replaces each ``image_token`` of a text by ``start_token``,
    ``image_seq_length`` image tokens for every tile of the image, and ``end_token``.

    It treats images as transformers' ``InternVLProcessor`` does, without its video processor, which
    needs torchvision. With one tile per image it does the same as Qwen-VL's tokenizer.
    """

    image_seq_length: int
    image_token: str
    start_token: str
    end_token: str

    @no_type_check  # transformers inspects the signature, which a checking wrapper would hide
    def __init__(
        self,
        image_processor: Any = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        image_seq_length: int = 256,
        image_token: str = "<image>",
        start_token: str = "",
        end_token: str = "",
        chat_template: str | None = None,
        **options: Any,
    ):
        self.image_seq_length = image_seq_length
        self.image_token, self.start_token, self.end_token = image_token, start_token, end_token
        super().__init__(image_processor, tokenizer, chat_template=chat_template)

    def __call__(
        self,
        images: Any = None,
        text: str | Sequence[str] | None = None,
        return_tensors: str = "pt",
        **options: Any,
    ) -> BatchFeature:
        """Prepare inputs for ``generate``.

        Args:
            images: all images of all texts, in order, flat or nested in lists.
            text: one prompt or several, with an ``image_token`` for each image.
            return_tensors: passed on to the tokenizer and the image processor.
            **options: options of the tokenizer, such as ``padding=True``.

        Returns:
            ``input_ids`` and ``attention_mask`` [b, tokens], and with images ``pixel_values``
            [tiles, 3, height, width].

        Raises:
            InvalidInput: numbers of images and placeholders that differ, or no text.
        """
        texts = [text] if isinstance(text, str) else list(text or ())
        if not texts:
            raise InvalidInput(f"text is {text!r}: give one prompt or several.")
        pixels: dict[str, Any] = {}
        tiles: list[int] = []
        if images is not None:
            flat: Any = make_flat_list_of_images(self.image_processor.fetch_images(images))
            pixels = dict(self.image_processor(flat, return_tensors=return_tensors))
            tiles = [int(n) for n in pixels.pop("num_patches", [1] * len(flat))]
        tokens = self.tokenizer(
            self._expand(texts, tiles), return_tensors=return_tensors, **_for_text(options)
        )
        return BatchFeature(data={**tokens, **pixels})

    def _expand(self, texts: Sequence[str], tiles: Sequence[int]) -> list[str]:
        placeholders = sum(text.count(self.image_token) for text in texts)
        if placeholders != len(tiles):
            raise InvalidInput(
                f"the text has {placeholders} {self.image_token!r} placeholder(s), but "
                f"{len(tiles)} image(s) were given. Give one image for each."
            )
        left = iter(tiles)
        return [self._with_spans(text, left) for text in texts]

    def _with_spans(self, text: str, tiles: Any) -> str:
        first, *rest = text.split(self.image_token)
        return first + "".join(self._span(next(tiles)) + piece for piece in rest)

    def _span(self, tiles: int) -> str:
        tokens = self.image_token * (self.image_seq_length * tiles)
        return f"{self.start_token}{tokens}{self.end_token}"


def _for_text(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the tokenizer, without those for other modalities."""
    mine = {**options, **options.get("text_kwargs", {})}
    return {name: value for name, value in mine.items() if not name.endswith("_kwargs")}
