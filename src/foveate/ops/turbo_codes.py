"""TurboQuant: vectors as codes of their randomly rotated coordinates, without calibration.

Zandieh et al., arXiv:2504.19874. A random rotation gives every coordinate of a unit vector the same
known distribution, so that one codebook, computed from the distribution alone, serves all of them.
Algorithm 1 minimises the error of the vector. Algorithm 2 spends one bit per coordinate on the sign
of a random projection of the remaining error, which makes inner products unbiased.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

BITS = (4, 3, 2, 1)
SEED = 2504  # rotations and projections are drawn, never stored: files depend on the seed
GRID = 2**17  # points of the numeric integral in codebook(); more change no digit of float32
ROUNDS = 3000  # of Lloyd's algorithm; 16 levels need about 2,000 to converge to float32


@lru_cache(maxsize=64)
def rotation(d: int, device: torch.device) -> Float[Tensor, "d d"]:
    """Return the random rotation of vectors of size ``d``: Q of a normal matrix's QR (line 2)."""
    q, r = torch.linalg.qr(_normal(d, SEED))
    unique: Tensor = q * r.diagonal().sign()
    return unique.float().to(device)


@lru_cache(maxsize=64)
def projection(d: int, device: torch.device) -> Float[Tensor, "d d"]:
    """Return the normal matrix S of Algorithm 2 (line 3)."""
    return _normal(d, SEED + 1).float().to(device)


def _normal(d: int, seed: int) -> Float[Tensor, "d d"]:
    drawn = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(d, d, generator=drawn, dtype=torch.float64, device="cpu")


@lru_cache(maxsize=64)
def codebook(d: int, bits: int, device: torch.device) -> Float[Tensor, "k"]:
    """Return the ``2**bits`` ascending levels of a rotated coordinate (equation 4).

    They minimise the squared error under the density of one coordinate of a random unit vector
    (Lemma 1): f(x) is proportional to (1 - x^2)^((d - 3) / 2). Solved by Lloyd's algorithm.
    """
    reach = min(1.0, 12 / math.sqrt(d))  # the rest has no mass in double precision
    cells = (torch.arange(GRID, dtype=torch.float64, device="cpu") + 0.5) / GRID
    x = (2 * cells - 1) * reach
    mass = (1 - x * x).clamp_min(1e-300).pow((d - 3) / 2).cumsum(0)
    moment = (x * mass.diff(prepend=mass.new_zeros(1))).cumsum(0)
    levels = x[torch.searchsorted(mass, mass[-1] * _middles(2**bits))]
    for _ in range(ROUNDS):
        cuts = torch.searchsorted(x, (levels[1:] + levels[:-1]) / 2)
        levels = _between(moment, cuts) / _between(mass, cuts)
    return levels.float().to(device)


def _middles(count: int) -> Float[Tensor, "k"]:
    return (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5) / count


def _between(sums: Float[Tensor, "x"], cuts: Int[Tensor, "m"]) -> Float[Tensor, "k"]:
    """Return the differences of cumulative sums between cuts, the ends included."""
    zero = sums.new_zeros(1)
    return torch.cat([zero, sums[cuts - 1], sums[-1:]]).diff()


def encode(
    x: Float[Tensor, "f d"], bits: int, sketch: bool = False
) -> tuple[UInt8[Tensor, "f w"], Float[Tensor, "f s"]]:
    """Encode vectors in ``bits`` bits per coordinate.

    Args:
        x: vectors of any norm.
        bits: 1 to 4.
        sketch: spend one of the bits on the signs of Algorithm 2; needs 2 bits or more.

    Returns:
        Codes, and of each vector its norm (and under ``sketch`` the norm of the error of the unit
        vector), in the dtype of ``x``. Zero vectors have the norm 0.
    """
    norm = x.float().norm(dim=-1, keepdim=True)
    unit = x.float() / norm.masked_fill(norm == 0, 1.0)
    levels = codebook(x.shape[1], bits - sketch, x.device)
    rotated = unit @ rotation(x.shape[1], x.device).T
    numbers = torch.bucketize(rotated, (levels[1:] + levels[:-1]) / 2)
    codes = packed(numbers, bits - sketch)
    if not sketch:
        return codes, norm.to(x.dtype)
    error = unit - levels[numbers] @ rotation(x.shape[1], x.device)
    signs = error @ projection(x.shape[1], x.device).T >= 0
    norms = torch.cat([norm, error.norm(dim=-1, keepdim=True)], dim=1)
    return torch.cat([codes, packed(signs.long(), 1)], dim=1), norms.to(x.dtype)


def decode(
    codes: UInt8[Tensor, "f w"], norms: Float[Tensor, "f s"], d: int, bits: int
) -> Float[Tensor, "f d"]:
    """Decode vectors of size ``d``; two ``norms`` per vector mean that ``encode`` had a sketch."""
    sketch = norms.shape[1] == 2
    width = bytes_of(d, bits - sketch)
    unit = rotated_units(codes[:, :width], d, bits - sketch) @ rotation(d, codes.device)
    if sketch:
        signs = signs_of(codes[:, width:], d)
        unit = unit + sketch_scale(norms, d) * (signs @ projection(d, codes.device))
    return (unit * norms[:, :1].float()).to(norms.dtype)


def rotated_units(codes: UInt8[Tensor, "f w"], d: int, bits: int) -> Float[Tensor, "f d"]:
    """Return the levels of unit vectors in rotated coordinates."""
    return F.embedding(_words(codes, bits), _table(d, bits, codes.device)).flatten(1)[:, :d]


def signs_of(codes: UInt8[Tensor, "f w"], d: int) -> Float[Tensor, "f d"]:
    """Return the signs of a sketch, -1 and 1."""
    table = _lists(1, codes.device).float() * 2 - 1
    return F.embedding(_words(codes, 1), table).flatten(1)[:, :d]


def sketch_scale(norms: Float[Tensor, "f 2"], d: int) -> Float[Tensor, "f 1"]:
    """Return the factor of S^T signs in a unit vector (Algorithm 2, line 11)."""
    return math.sqrt(math.pi / 2) / d * norms[:, 1:].float()


def bytes_of(d: int, bits: int) -> int:
    """Return the bytes of the codes of one vector: whole words of a byte, or 3 bytes if bits=3."""
    return -(-d // 8) * 3 if bits == 3 else -(-d * bits // 8)


def packed(numbers: Int[Tensor, "f d"], bits: int) -> UInt8[Tensor, "f w"]:
    """Pack numbers of ``bits`` bits, the first in the lowest bits; 8 of 3 bits take 3 bytes."""
    per_word, word_bytes = (8, 3) if bits == 3 else (8 // bits, 1)
    padded = F.pad(numbers, (0, -numbers.shape[1] % per_word))
    shifts = torch.arange(0, per_word * bits, bits, device=numbers.device)
    by_word = padded.view(len(padded), padded.shape[1] // per_word, per_word)
    words = (by_word << shifts).sum(-1, keepdim=True)
    parts: Tensor = words >> torch.arange(0, 8 * word_bytes, 8, device=numbers.device) & 255
    return parts.flatten(1).to(torch.uint8)


def _words(codes: UInt8[Tensor, "f w"], bits: int) -> Int[Tensor, "f n"]:
    """Return the indices into :func:`_table`: bytes, or of 3 bits words of 12 bits."""
    if bits != 3:
        return codes.int()
    low, middle, high = codes.int().view(len(codes), codes.shape[1] // 3, 3).unbind(-1)
    return torch.stack([low | (middle & 15) << 8, middle >> 4 | high << 4], dim=-1).flatten(1)


@lru_cache(maxsize=64)
def _table(d: int, bits: int, device: torch.device) -> Float[Tensor, "n p"]:
    """Return the levels of all codes in a word: one lookup decodes ``p`` coordinates."""
    return codebook(d, bits, device)[_lists(bits, device)]


def _lists(bits: int, device: torch.device) -> Int[Tensor, "n p"]:
    word_bits = 12 if bits == 3 else 8
    words = torch.arange(2**word_bits, device=device)
    shifted = words[:, None] >> torch.arange(0, word_bits, bits, device=device)
    numbers: Tensor = shifted & (2**bits - 1)
    return numbers
