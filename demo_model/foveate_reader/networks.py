"""Networks of PP-OCRv6 small in plain PyTorch: a detector of text and an encoder of its lines.

Both have a backbone of the same kind. Weights are converted from the published ONNX files by
``training/reader/convert.py``, which relies on the order in which layers are created here: it is
the order of the ONNX graphs. Batch normalisation is folded into the convolutions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES = 120
"""Length of the encoder's features."""
HEIGHT = 48
"""Height of a line in pixels."""
COLUMN = 8
"""Width of a column in pixels, of a line that is scaled to ``HEIGHT``."""
READABLE = "".join(map(chr, range(32, 127)))
"""Characters whose rows of the encoder's head are kept: printable ASCII."""


class Stage(NamedTuple):
    """Block of a backbone: channels of its output, stride, and True if channels are gated."""

    channels: int
    stride: int | tuple[int, int] = 1
    gated: bool = False


_DETECTOR = (
    (Stage(48, gated=True), Stage(48)),
    (Stage(96, 2), Stage(96, gated=True), Stage(96)),
    (Stage(192, 2), Stage(192, gated=True), Stage(192), Stage(192, gated=True), Stage(192)),
    (Stage(384, 2), Stage(384, gated=True), Stage(384)),
)
_ENCODER = (
    (Stage(96, gated=True), Stage(96), Stage(96)),
    (Stage(192, (2, 1)), Stage(192, gated=True), Stage(192))
    + (Stage(192, gated=True), Stage(192)) * 2,
    (Stage(384, (2, 1)), Stage(384, gated=True), Stage(384)),
)
"""Blocks of the two backbones, by the stages whose outputs a detector uses."""


class Stem(nn.Module):
    """First layers: two branches at half the resolution, then a quarter of it."""

    def __init__(self, middle: int, width: int):
        super().__init__()
        self.first = nn.Conv2d(3, middle, 3, 2, 1)
        self.narrow = nn.Conv2d(middle, middle // 2, 2)
        self.widen = nn.Conv2d(middle // 2, middle, 2)
        self.join = nn.Conv2d(2 * middle, middle, 3, 2, 1)
        self.last = nn.Conv2d(middle, width, 1)

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b c h4 w4"]:
        x = F.relu(self.first(pixels))
        # kernels of even size keep the size by padding on the right and below
        branch = F.relu(self.narrow(F.pad(x, (0, 1, 0, 1))))
        branch = F.relu(self.widen(F.pad(branch, (0, 1, 0, 1))))
        pooled = F.max_pool2d(F.pad(x, (0, 1, 0, 1)), 2, 1)
        x = F.relu(self.join(torch.cat([pooled, branch], 1)))
        return F.relu(self.last(x))


class Gate(nn.Module):
    """Squeeze-and-excitation: factors between 0 and 1 for channels, from their means."""

    def __init__(self, channels: int, slope: float = 1 / 6):
        super().__init__()
        self.squeeze = nn.Conv2d(channels, channels // 4, 1)
        self.excite = nn.Conv2d(channels // 4, channels, 1)
        self.slope = slope  # of the hard sigmoid: 1/6 in backbones, 0.2 in the detector's neck

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c 1 1"]:
        x = self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True))))
        return (self.slope * x + 0.5).clamp(0, 1)


class Block(nn.Module):
    """Depthwise convolution, gate, and two pointwise layers, with a shortcut if sizes agree."""

    def __init__(self, width: int, stage: Stage):
        super().__init__()
        self.mix = nn.Conv2d(width, width, 3, stage.stride, 1, groups=width)
        self.gate = Gate(width) if stage.gated else None
        self.up = nn.Conv2d(width, 2 * width, 1)
        self.down = nn.Conv2d(2 * width, stage.channels, 1)
        self.shortcut = stage.channels == width

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h2 w2"]:
        x = self.mix(x)
        if self.gate is not None:
            x = x * self.gate(x)
        y = self.down(F.gelu(self.up(x)))
        result: Tensor = x + y if self.shortcut else y
        return result


class Backbone(nn.Module):
    """PP-LCNetV4 as PP-OCRv6 uses it. Returns the output of every stage."""

    def __init__(self, middle: int, width: int, stages: tuple[tuple[Stage, ...], ...]):
        super().__init__()
        self.stem = Stem(middle, width)
        self.stages = nn.ModuleList()
        for stage in stages:
            blocks = nn.Sequential()
            for block in stage:
                blocks.append(Block(width, block))
                width = block.channels
            self.stages.append(blocks)

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> list[Tensor]:
        x, found = self.stem(pixels), []
        for stage in self.stages:
            x = stage(x)
            found.append(x)
        return found


class GatedConv(nn.Module):
    """Convolution whose channels are increased by their gates."""

    def __init__(self, before: int, after: int):
        super().__init__()
        self.conv = nn.Conv2d(before, after, 1, bias=False)
        self.gate = Gate(after, 0.2)

    def forward(self, x: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"]:
        x = self.conv(x)
        result: Tensor = x + x * self.gate(x)
        return result


class Smooth(nn.Sequential):
    """Large depthwise convolution and a gated one, of one level of the pyramid."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(96, 96, 7, 1, 3, groups=96), GatedConv(96, 24))


class Detector(nn.Module):
    """Detector of text: the probability that a pixel belongs to the core of a line of text."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone(24, 48, _DETECTOR)
        self.lateral = nn.ModuleList(GatedConv(width, 96) for width in (384, 192, 96, 48))
        self.smooth = nn.ModuleList(Smooth() for _ in range(4))
        self.head = nn.Conv2d(96, 24, 3, 1, 1)
        self.grow = nn.ConvTranspose2d(24, 24, 2, 2)
        self.score = nn.ConvTranspose2d(24, 1, 2, 2)

    def forward(self, pixels: Float[Tensor, "b 3 h w"]) -> Float[Tensor, "b 1 h w"]:
        """Return probabilities. Sides of the image must be multiples of 32."""
        seen = self.backbone(pixels)[::-1]
        levels: list[Tensor] = []
        for lateral, x in zip(self.lateral, seen, strict=True):
            x = lateral(x)
            levels.append(x + F.interpolate(levels[-1], scale_factor=2.0) if levels else x)
        parts = [
            F.interpolate(smooth(x), scale_factor=float(2 ** (3 - i)))
            for i, (smooth, x) in enumerate(zip(self.smooth, levels, strict=True))
        ]
        x = F.relu(self.head(torch.cat(parts, 1)))
        return torch.sigmoid(self.score(F.relu(self.grow(x))))


class Mixer(nn.Module):
    """Transformer layer over the columns of a line."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(FEATURES)
        self.qkv = nn.Linear(FEATURES, 3 * FEATURES)
        self.out = nn.Linear(FEATURES, FEATURES)
        self.norm_2 = nn.LayerNorm(FEATURES)
        self.up = nn.Linear(FEATURES, 2 * FEATURES)
        self.down = nn.Linear(2 * FEATURES, FEATURES)

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        result: Tensor = x + self.down(F.silu(self.up(self.norm_2(x))))
        return result


class Encoder(nn.Module):
    """Encoder of lines of text: one feature vector for every column of 8 pixels.

    ``head`` reads a column: logits of "no character", then of ``READABLE``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone(48, 96, _ENCODER)
        self.shortcut = nn.Conv2d(384, FEATURES, 1)
        self.reduce = nn.Conv2d(384, FEATURES, 1)
        self.near = nn.Conv2d(FEATURES, FEATURES, (1, 7), padding=(0, 3), groups=FEATURES)
        self.mixers = nn.ModuleList(Mixer() for _ in range(2))
        self.norm = nn.LayerNorm(FEATURES, eps=1e-6)
        self.head = nn.Linear(FEATURES, 1 + len(READABLE))

    def forward(self, pixels: Float[Tensor, "b 3 48 w"]) -> Float[Tensor, "b n 120"]:
        """Return the features of each column. Lines of a batch must have the same width: padding
        changes them.
        """
        x = F.avg_pool2d(self.backbone(pixels)[-1], (3, 2))
        shortcut = F.silu(self.shortcut(x))
        x = F.silu(self.reduce(x))
        x = (x + F.silu(self.near(x)))[:, :, 0].transpose(1, 2)
        for mixer in self.mixers:
            x = mixer(x)
        result: Tensor = self.norm(x) + shortcut[:, :, 0].transpose(1, 2)
        return result
