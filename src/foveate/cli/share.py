"""Profiles that are handed on: the folder that ``foveate calibrate --share`` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foveate.core import manifest
from foveate.core.installed import MANIFEST, SCHEMA
from foveate.core.profile import Profile
from foveate.core.tensor_profile import TensorProfile
from foveate.eval.executors import versions


def share(profile: Profile | TensorProfile, path: Path, prompts: Path | None) -> Path:
    """Writes the manifest of a profile that lies at ``path``, beside it: whose it is, on which
    weights and prompts it was measured, and by which versions, so that whoever has the model can
    make it again and compare.

    Args:
        profile: as it was saved.
        path: of its file.
        prompts: the file that they came from; None for those that come with Foveate.

    Raises:
        CannotWrite: the disk is full, or the folder is not to be written to.
    """
    said: dict[str, Any] = {
        "schema": SCHEMA,
        "method": profile.method,
        "model": profile.model,
        "weights": profile.weights,
        "layers": profile.layers,
        "budget": profile.budget,
        "prompts": {"count": profile.samples, "from": "drawn"},
        "versions": versions(),
    }
    if prompts is not None:
        said["prompts"] |= {"from": prompts.name, **manifest.measured(prompts)}
    if isinstance(profile, TensorProfile):
        said["target"] = profile.target
        said["prompts"]["digest"] = profile.prompts
    return manifest.write(path.with_name(MANIFEST), said, (path.name,))
