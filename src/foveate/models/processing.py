"""Text and images to inputs, for models that put an image's tokens between two marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, no_type_check

from transformers import BatchFeature, PreTrainedTokenizerBase, ProcessorMixin
from transformers.image_utils import make_flat_list_of_images

from foveate.errors import InvalidInput


class ImageSpanProcessor(ProcessorMixin):
    """Each ``image_token`` of a text becomes ``start_token``, ``image_seq_length`` image tokens for
    every tile of the image, and ``end_token``.

    It is what transformers' ``InternVLProcessor`` does with images, without the video reader, which
    needs torchvision; and, with one tile an image, what Qwen-VL's tokenizer does.
    """

    image_seq_length: int
    image_token: str
    start_token: str
    end_token: str

    @no_type_check  # transformers reads the names of the function's own arguments, not a wrapper's
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
        """What ``generate`` takes.

        Args:
            images: all images of all texts, in order; lists of them are taken, too.
            text: one prompt or several, with ``image_token`` where an image stands.
            return_tensors: passed on.
            **options: for the tokenizer, such as ``padding=True``.

        Returns:
            ``input_ids`` and ``attention_mask`` [b, tokens], and with images ``pixel_values``
            [tiles, 3, height, width].

        Raises:
            InvalidInput: another number of images than of places for them, or no text.
        """
        texts = [text] if isinstance(text, str) else list(text or ())
        if not texts:
            raise InvalidInput(f"text is {text!r}: give one prompt or several.")
        seen: dict[str, Any] = {}
        tiles: list[int] = []
        if images is not None:
            flat: Any = make_flat_list_of_images(self.image_processor.fetch_images(images))
            seen = dict(self.image_processor(flat, return_tensors=return_tensors))
            tiles = [int(n) for n in seen.pop("num_patches", [1] * len(flat))]
        read = self.tokenizer(
            self._expanded(texts, tiles), return_tensors=return_tensors, **_for_text(options)
        )
        return BatchFeature(data={**read, **seen})

    def _expanded(self, texts: Sequence[str], tiles: Sequence[int]) -> list[str]:
        places = sum(text.count(self.image_token) for text in texts)
        if places != len(tiles):
            raise InvalidInput(
                f"the text has {places} {self.image_token!r} placeholder(s), but {len(tiles)} "
                "image(s) were given. Give one image for each."
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
    """The options without those that templates pass on for other readers."""
    mine = {**options, **options.get("text_kwargs", {})}
    return {name: value for name, value in mine.items() if not name.endswith("_kwargs")}
