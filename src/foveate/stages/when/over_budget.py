"""Bounded memory: compress again whenever the answer has outgrown the budget."""

from __future__ import annotations

from dataclasses import dataclass

from foveate.core.parameters import Positive
from foveate.core.protocols import Moment
from foveate.core.spec import stage


@stage("over_budget")
@dataclass(frozen=True, kw_only=True)
class OverBudget:
    """After the prefill, and then whenever the heads hold ``every`` pairs more than they kept last.
    The budget stays what it was for the prompt, so the cache grows no further.

    ``every=1`` is the papers' rule (H2O, CSP Algorithm 1); a larger number spreads the cost of
    compressing over that many decoded tokens. With ``reading`` the same holds between the passes of
    a prompt that is read in chunks (InfiniPot-V); without ``answering`` not while decoding.
    """

    every: Positive = 1
    reading: bool = False
    answering: bool = True

    @property
    def decodes(self) -> bool:
        return self.answering

    @property
    def reads(self) -> bool:
        return self.reading

    def __call__(self, moment: Moment) -> bool:
        return moment.prompt or bool((moment.stored - moment.kept >= self.every).any())
