"""Which scores go with which budgets, selections and merges: found out by trying each pair."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import MISSING, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

import foveate
from foveate.errors import InvalidParameter
from foveate.methods.recommended.head_levels import LEVELS
from foveate.policies.gathering import GATHERINGS, targets_of
from foveate.policies.protocols import (
    AfterPrefill,
    Budget,
    FullPrecision,
    Merge,
    NoMerge,
    Score,
    Select,
    Softmax,
    Store,
)
from foveate.policies.prunes import PRUNES
from foveate.policies.spec import SLOTS, STAGES
from foveate.profiles.profile import Profile
from foveate.profiles.tensor_profile import TensorProfile

TOKENS, LAYERS, HEADS = 48, 2, 2
NOTES = ("density", "entropy", "mass")  # what layer_shares can share by
OPTIONS: dict[str, dict[str, Any]] = {
    "answer_budget": {"tokens": 8, "recent": 2},
    "attention_before": {"window": 4},
    "best_heads": {"of": "sparsemm"},
    "boundary_evidence": {"window": 4},
    "drop_channels": {"recent": 4},
    "head_levels": {"of": "recommended"},
    "layer_levels": {"of": "recommended"},
    "head_table": {"of": "sparsemm"},
    "lag_relative": {"lag": 5},
    "large_and_drawn": {"recent": 4},
    "layer_shares": {"of": NOTES[0]},
    "mix_diversity": {"window": 4},
    "modality_fusion": {"window": 4},
    "query_energy": {"window": 4},
    "question_attention": {"window": 4},
    "window_attention": {"window": 4},
}
# whose profile a stage takes, if not sparsemm's
PROFILES = {
    "foretold_reconstruction": "recommended",
    "head_levels": "recommended",
    "layer_levels": "recommended",
    "query_filter": "q_filters",
    "distance_preference": "triattention",
    "surrogate_score": "kvzap",
}
PACKAGES = ("foveate.policies.", "foveate.compression.", "foveate.stages.", "foveate.methods.")
ELSEWHERE = {  # what cannot be tried on tensors, at a given budget
    "kvpress",  # needs the package
    "pseudo_questions",  # needs the model
    "reconstruction",  # needs the model
    "above_threshold",  # has no total
    "each_head",  # likewise
    *(one.stage_name for one in PRUNES.values()),  # say what is computed, beside every combination
    "chat_attention",  # needs the model
    "with_prototypes",  # goes with chat_attention alone
    "frame_prototypes",  # likewise
}
INNER = STAGES["window_attention"](window=4)


TENSORS = {  # of a profile
    "kvzap": {
        "of_key": torch.eye(8)[:HEADS],
        "of_value": torch.eye(8)[:HEADS],
        "offset": torch.zeros(HEADS),
    },
    "q_filters": {"filters": torch.eye(8)[:HEADS]},
    "recommended": {
        "of_key": torch.eye(8)[:HEADS],
        "of_value": torch.eye(8)[:HEADS],
        "of_facts": torch.zeros(HEADS, 5),
        "offset": torch.zeros(HEADS),
        "levels": torch.zeros(HEADS, LEVELS),
    },
    "triattention": {
        "centre": torch.eye(8)[: 2 * HEADS],
        "length": torch.ones(2 * HEADS, 4),
        "frequencies": torch.ones(4),
        "pairs": torch.arange(8).view(2, 4),
    },
}


def stage(name: str, profile: Path) -> Any:
    """The stage with settings that fit a tiny prompt."""
    kind = STAGES[name]
    fields = kind.__dataclass_fields__
    given = {"of": INNER, "amount": "50%", "profile": str(profile)}
    needed = {k: v for k, v in given.items() if k in fields and fields[k].default is MISSING}
    return kind(**{**needed, **OPTIONS.get(name, {})})


@cache
def prompt() -> dict[str, Any]:
    """Tensors of two layers, and which of the tokens are visual."""
    g = torch.Generator().manual_seed(0)
    shapes = (2 * HEADS, HEADS, HEADS)
    layers = [
        tuple(torch.randn(1, h, TOKENS, 8, generator=g) for h in shapes) for _ in range(LAYERS)
    ]
    vision = torch.zeros(1, TOKENS, dtype=torch.bool)
    vision[:, 4:16] = vision[:, 18:30] = vision[:, 32:44] = True
    weights = [torch.randn(2 * HEADS, 8, 16, generator=g) for _ in range(LAYERS)]
    return {"layers": layers, "vision": vision, "output_weights": weights}


def works(**stages: Any) -> bool:
    """Whether a policy of these stages keeps what its budget says."""
    policy = foveate.Policy(**stages)
    try:
        kept = foveate.compress_tensors(policy, **prompt())
    except InvalidParameter:
        return False
    return sum(int(one.counts.sum()) for one in kept) == LAYERS * HEADS * TOKENS // 2


def table() -> str:
    """One row a score; a tick where the pair works, nothing where it is refused."""
    with tempfile.TemporaryDirectory() as folder:
        return "\n".join(_rows(Path(folder)))


def _rows(folder: Path) -> Iterator[str]:
    own = [
        name
        for name, kind in sorted(STAGES.items())
        if kind.__module__.startswith(PACKAGES) and name not in ELSEWHERE
    ]
    made = {name: stage(name, _profile(folder, PROFILES.get(name, "sparsemm"))) for name in own}
    shares = replace(made.pop("layer_shares"), amount="50%")
    made |= {f"layer_shares(of={note})": replace(shares, of=note) for note in NOTES}
    kinds = {"budget": Budget, "select": Select, "merge": Merge}
    scores = {name: one for name, one in made.items() if isinstance(one, Score)}
    columns = [
        (slot, name)
        for slot, kind in kinds.items()
        for name, one in made.items()
        if isinstance(one, kind) and _is(slot, one)
    ]
    yield f"| score | {' | '.join(f'`{name}`' for _, name in columns)} |"
    yield "|---|" + "---|" * len(columns)
    usual = {"budget": made["uniform"], "select": made["top_k"], "merge": NoMerge()}
    for name, score in scores.items():
        cells = [
            "✓" if works(**{**usual, slot: made[other], "score": score}) else ""
            for slot, other in columns
        ]
        yield f"| `{name}` | {' | '.join(cells)} |"


def _is(slot: str, one: Any) -> bool:
    """Of that slot alone: many things can be called as a merge is."""
    others = (Score, Budget, Select, Store)
    called = hasattr(one, "decodes") or hasattr(one, "n") or isinstance(one, (NoMerge, *others))
    return slot != "merge" or not called


def parts() -> str:
    """One row a method: the stages that it consists of, but for those that do nothing."""
    rows = [f"| method | {' | '.join(SLOTS)} |", "|---|" + "---|" * len(SLOTS)]
    with tempfile.TemporaryDirectory() as folder:
        for name, method in foveate.METHODS.items():
            given: dict[str, Any] = {"budget": "50%"} if _needs(method, "budget") else {}
            if _needs(method, "profile") or name == "recommended":
                given["profile"] = str(_profile(Path(folder), name))
            policy = method(**given)
            cells = [_name(getattr(policy, slot)) for slot in SLOTS]
            rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def _needs(method: Any, name: str) -> bool:
    parameter = method.parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def _name(stage: Any) -> str:
    """Its name, and in parentheses the score that it wraps."""
    if stage in (NoMerge(), AfterPrefill(), Softmax(), FullPrecision()):
        return ""
    inner = getattr(stage, "of", None)
    name: str = stage.spec_name
    return f"`{name}` of {_name(inner)}" if isinstance(inner, Score) else f"`{name}`"


def _profile(folder: Path, method: str) -> Path:
    """A profile of two layers with two heads of eight channels."""
    if method in GATHERINGS:
        return TensorProfile(
            method=method,
            model="",
            layers=LAYERS,
            samples=1,
            budget="",
            target=next(iter(targets_of(GATHERINGS[method])), ""),
            by_layer=[TENSORS[method]] * LAYERS,
        ).save(folder / f"{method}.safetensors")
    profile = Profile(
        method=method,
        model="",
        layers=LAYERS,
        samples=1,
        budget="",
        by_layer=[[1.0, 2.0], [3.0, 4.0]],
    )
    return profile.save(folder / f"{method}.json")
