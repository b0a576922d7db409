"""The ways to come to a share of the full cache's bytes that ``stack.py`` compares."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from benchmarks.quality.profiles_made import PROFILES
from foveate.cache.pairs import Form
from foveate.cache.pairs.form import COLUMN
from foveate.compression.byte_budget import Bytes
from foveate.compression.composition import policy

SHARES = (0.2, 0.1, 0.05)
PROFILE = f"profile={PROFILES}/recommended.safetensors"
PRUNE = "divprune.prune(keep={})+"
"""Before the first layer, by what looks at no question."""
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
"""Of the pairs of the demo model's layers."""


class Sizes(NamedTuple):
    """Of one prompt of the demo model: its tokens and visual ones."""

    tokens: int
    visual: int

    @property
    def full(self) -> int:
        """Bytes of the full cache."""
        return self.tokens * sum(form.heads * form.pair for form in FORMS)

    def held(self, spec: str) -> float:
        """The share of the pairs that a spec whose budget is in bytes holds."""
        bytes_of = Bytes(policy(spec), FORMS, self.tokens)
        return bytes_of.tokens([self.tokens]) / self.tokens

    def keep(self, share: float) -> float:
        """The share of visual tokens that goes on where that share of the pairs is computed; not
        above 0 where text alone is more.
        """
        return (share * self.tokens - (self.tokens - self.visual)) / self.visual


def specs_at(share: float, sizes: Sizes) -> dict[str, str]:
    """What is asked of a prompt at a share of its bytes, by name; some cannot be so small."""
    allowed = int(share * sizes.full)

    def evicting(bits: int | None, keep: float | None = None) -> str:
        first = "" if keep is None else PRUNE.format(f"{100 * keep:.1f}%")
        store = f"+kivi(bits={bits},residual={RESIDUAL})" if bits else ""
        return f"{first}recommended{store}:budget={allowed}B,{PROFILE}"

    held = {bits: sizes.held(evicting(bits)) for bits in (None, *BITS)}
    specs = {"pairs": evicting(None)} | {f"{bits} bits": evicting(bits) for bits in BITS[:3]}
    specs["4 bits, root"] = evicting(4, math.sqrt(held[4]))
    if held[4] < 1 and (keep := sizes.keep(held[4])) >= 0.001:
        specs["4 bits, tokens"] = evicting(4, keep)
    form = FORMS[0]
    if (keep := sizes.keep(share * form.pair / (form.pair + COLUMN))) >= 0.001:
        specs["tokens"] = PRUNE.format(f"{100 * keep:.1f}%") + "full"
    if fits := [bits for bits in BITS if held[bits] == 1]:
        specs["bits"] = f"kivi:bits={fits[0]},residual={RESIDUAL}"
    return specs
