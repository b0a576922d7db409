"""Splits of a byte budget that ``stack.py`` compares."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from benchmarks.quality.profiles_made import PROFILES
from foveate.cache.pairs import Form
from foveate.cache.pairs.pair_sizes import COLUMN
from foveate.compression.byte_budget import Bytes
from foveate.compression.composition import policy

SHARES = (0.2, 0.1, 0.05)
PROFILE = f"profile={PROFILES}/recommended.safetensors"
PRUNE = "divprune.prune(keep={})+"
"""Pruning before the first layer, independent of the question."""
BITS = (8, 4, 2, 1)
RESIDUAL = 4
NAMES = {
    "tokens": "tokens alone",
    "pairs": "pairs alone",
    "bits": "bits alone",
    "8 bits": "8 bits, then pairs",
    "4 bits": "4 bits, then pairs",
    "2 bits": "2 bits, then pairs",
    "4 bits, root": "4 bits, then tokens and pairs",
    "4 bits, tokens": "4 bits, then tokens",
}
FORMS = (Form(3, 9, 64, 64, torch.float32),) * 30
"""Pair layout of the demo model's layers."""


class Sizes(NamedTuple):
    """Tokens and visual tokens of one prompt of the demo model."""

    tokens: int
    visual: int

    @property
    def full(self) -> int:
        """Bytes of the full cache."""
        return self.tokens * sum(form.heads * form.pair for form in FORMS)

    def kept_share(self, spec: str) -> float:
        """Return the share of pairs kept by a spec whose budget is in bytes."""
        bytes_of = Bytes(policy(spec), FORMS, self.tokens)
        return bytes_of.tokens([self.tokens]) / self.tokens

    def keep(self, share: float) -> float:
        """Return the share of visual tokens to compute for a share of the pairs; at most 0 if text
        exceeds it.
        """
        return (share * self.tokens - (self.tokens - self.visual)) / self.visual


def specs_at(share: float, sizes: Sizes) -> dict[str, str]:
    """Return the specs for a share of a prompt's bytes, by name; some splits cannot be so small."""
    allowed = int(share * sizes.full)

    def evicting(bits: int | None, keep: float | None = None) -> str:
        first = "" if keep is None else PRUNE.format(f"{100 * keep:.1f}%")
        store = f"+kivi(bits={bits},residual={RESIDUAL})" if bits else ""
        return f"{first}recommended{store}:budget={allowed}B,{PROFILE}"

    kept_shares = {bits: sizes.kept_share(evicting(bits)) for bits in (None, *BITS)}
    specs = {"pairs": evicting(None)} | {f"{bits} bits": evicting(bits) for bits in BITS[:3]}
    specs["4 bits, root"] = evicting(4, math.sqrt(kept_shares[4]))
    if kept_shares[4] < 1 and (keep := sizes.keep(kept_shares[4])) >= 0.001:
        specs["4 bits, tokens"] = evicting(4, keep)
    form = FORMS[0]
    if (keep := sizes.keep(share * form.pair / (form.pair + COLUMN))) >= 0.001:
        specs["tokens"] = PRUNE.format(f"{100 * keep:.1f}%") + "full"
    if fits := [bits for bits in BITS if kept_shares[bits] == 1]:
        specs["bits"] = f"kivi:bits={fits[0]},residual={RESIDUAL}"
    return specs
