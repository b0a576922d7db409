"""Processor of the reader: text and images to its inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from foveate_demo.processor import DemoProcessor
from foveate_reader.eye import Eye


class ReaderProcessor(DemoProcessor):
    """Processor that reads images, and inserts as many image tokens as their text has columns.

    ``pixel_values`` are float32 [n, tokens, 125]: features, kind and box of each visual token, in
    reading order, padded with zeros at the end; see ``foveate_reader.eye``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, eye: Eye):
        super().__init__(tokenizer)
        self.eye = eye

    def encode(self, images: Sequence[Image.Image]) -> tuple[list[int], dict[str, Tensor]]:
        """Return the number of tokens of each image, and the inputs of all."""
        found = [self.eye(image) for image in images]
        padded = torch.nn.utils.rnn.pad_sequence(found, batch_first=True)
        return [len(tokens) for tokens in found], {"pixel_values": padded}
