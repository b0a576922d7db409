"""Processor of the reader: text and images to its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from foveate.data import rgb
from foveate_demo.processor import DemoProcessor
from foveate_reader.eye import Eye

_REMEMBERED = 8  # images


class ReaderProcessor(DemoProcessor):
    """Processor that reads images, and inserts as many image tokens as their text has characters.

    ``pixel_values`` are float32 [n, tokens, 125]: features, kind and box of each visual token, in
    reading order, padded with zeros at the end; see ``foveate_reader.eye``. The tokens of the last
    images are remembered, because several questions are asked about an image, and looking at one
    takes seconds.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eye: Eye):
        super().__init__(tokenizer)
        self.eye = eye
        self._seen: dict[bytes, Tensor] = {}

    def encode(self, images: Sequence[Image.Image]) -> tuple[list[int], dict[str, Tensor]]:
        """Return the number of tokens of each image, and the inputs of all."""
        found = [self._look(image) for image in images]
        padded = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
        return [len(tokens) for tokens in found], {"pixel_values": padded}

    def _look(self, image: Image.Image) -> Tensor:
        """Return the visual tokens of an image, looked at only if it is new."""
        image = rgb(image)
        key = sha256(repr((image.size, self.eye.all_columns)).encode() + image.tobytes()).digest()
        tokens = self._seen.pop(key) if key in self._seen else self.eye(image)
        self._seen[key] = tokens
        while len(self._seen) > _REMEMBERED:
            self._seen.pop(next(iter(self._seen)))
        return tokens
