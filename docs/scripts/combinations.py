"""Tables of docs/stages.md: stages of each method, and combinations of scores that work.

Each score is run with each budget, selection and merge.
"""

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
STATISTICS = ("density", "entropy", "mass")  # by which layer_shares can share
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
    "layer_shares": {"of": STATISTICS[0]},
    "mix_diversity": {"window": 4},
    "modality_fusion": {"window": 4},
    "query_energy": {"window": 4},
    "question_attention": {"window": 4},
    "window_attention": {"window": 4},
}
# Method whose profile a stage reads, if not sparsemm.
PROFILES = {
    "foretold_reconstruction": "recommended",
    "head_levels": "recommended",
    "layer_levels": "recommended",
    "query_filter": "q_filters",
    "distance_preference": "triattention",
    "surrogate_score": "kvzap",
    "hidden_gate": "fast_kvzip",
}
PACKAGES = ("foveate.policies.", "foveate.compression.", "foveate.stages.", "foveate.methods.")
ELSEWHERE = {  # stages that cannot run on bare tensors with a fixed budget
    "kvpress",  # needs the package
    "indexer",  # needs the model
    "pseudo_questions",  # needs the model
    "reconstruction",  # needs the model
    "above_threshold",  # has no total
    "each_head",  # likewise
    *(prune.stage_name for prune in PRUNES.values()),  # independent of the other stages
    "chat_attention",  # needs the model
    "with_prototypes",  # goes with chat_attention alone
    "frame_prototypes",  # likewise
}
INNER = STAGES["window_attention"](window=4)


TENSORS = {  # of one layer's profile, by method
    "fast_kvzip": {
        "of_query": torch.ones(HEADS, 2, 4, 16),
        "query_offset": torch.zeros(HEADS, 2, 4),
        "of_key": torch.ones(HEADS, 4, 16),
        "query_norm": torch.ones(4),
        "key_norm": torch.ones(4),
        "sink_keys": torch.ones(HEADS, 3, 4),
        "offset": torch.zeros(HEADS, 2),
    },
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
    """Build a stage with settings that fit a tiny prompt."""
    kind = STAGES[name]
    fields = kind.__dataclass_fields__
    values = {"of": INNER, "amount": "50%", "profile": str(profile)}
    needed = {k: v for k, v in values.items() if k in fields and fields[k].default is MISSING}
    return kind(**{**needed, **OPTIONS.get(name, {})})


@cache
def prompt() -> dict[str, Any]:
    """Return random tensors of two layers and a mask of visual tokens, for `compress_tensors`."""
    g = torch.Generator().manual_seed(0)
    shapes = (2 * HEADS, HEADS, HEADS)
    layers = [
        tuple(torch.randn(1, h, TOKENS, 8, generator=g) for h in shapes) for _ in range(LAYERS)
    ]
    vision = torch.zeros(1, TOKENS, dtype=torch.bool)
    vision[:, 4:16] = vision[:, 18:30] = vision[:, 32:44] = True
    weights = [torch.randn(2 * HEADS, 8, 16, generator=g) for _ in range(LAYERS)]
    hidden = [torch.randn(1, TOKENS, 16, generator=g) for _ in range(LAYERS)]
    return {"layers": layers, "vision": vision, "output_weights": weights, "hidden_states": hidden}


def works(**stages: Any) -> bool:
    """Return whether a policy of these stages is accepted and keeps exactly half of the pairs."""
    policy = foveate.Policy(**stages)
    try:
        kept = foveate.compress_tensors(policy, **prompt())
    except InvalidParameter:
        return False
    return sum(int(layer.counts.sum()) for layer in kept) == LAYERS * HEADS * TOKENS // 2


def table() -> str:
    """Return one row per score, with a tick for each stage that it works with."""
    with tempfile.TemporaryDirectory() as folder:
        return "\n".join(_rows(Path(folder)))


def _rows(folder: Path) -> Iterator[str]:
    own = [
        name
        for name, kind in sorted(STAGES.items())
        if kind.__module__.startswith(PACKAGES) and name not in ELSEWHERE
    ]
    stages = {name: stage(name, _profile(folder, PROFILES.get(name, "sparsemm"))) for name in own}
    shares = replace(stages.pop("layer_shares"), amount="50%")
    stages |= {f"layer_shares(of={name})": replace(shares, of=name) for name in STATISTICS}
    kinds = {"budget": Budget, "select": Select, "merge": Merge}
    scores = {name: built for name, built in stages.items() if isinstance(built, Score)}
    columns = [
        (slot, name)
        for slot, kind in kinds.items()
        for name, built in stages.items()
        if isinstance(built, kind) and _belongs_in(slot, built)
    ]
    yield f"| score | {' | '.join(f'`{name}`' for _, name in columns)} |"
    yield "|---|" + "---|" * len(columns)
    usual = {"budget": stages["uniform"], "select": stages["top_k"], "merge": NoMerge()}
    for name, score in scores.items():
        cells = [
            "✓" if works(**{**usual, slot: stages[other], "score": score}) else ""
            for slot, other in columns
        ]
        yield f"| `{name}` | {' | '.join(cells)} |"


def _belongs_in(slot: str, stage: Any) -> bool:
    """Return whether a stage is for a slot; any callable passes for a merge, so exclude others."""
    others = (Score, Budget, Select, Store)
    called = (
        hasattr(stage, "decodes") or hasattr(stage, "n") or isinstance(stage, (NoMerge, *others))
    )
    return slot != "merge" or not called


def parts() -> str:
    """Return one row per method with its stages; a stage that does nothing is left out."""
    rows = [f"| method | {' | '.join(SLOTS)} |", "|---|" + "---|" * len(SLOTS)]
    with tempfile.TemporaryDirectory() as folder:
        for name, method in foveate.METHODS.items():
            arguments: dict[str, Any] = {"budget": "50%"} if _needs(method, "budget") else {}
            if _needs(method, "profile") or name == "recommended":
                arguments["profile"] = str(_profile(Path(folder), name))
            policy = method(**arguments)
            cells = [_name(getattr(policy, slot)) for slot in SLOTS]
            rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def _needs(method: Any, name: str) -> bool:
    parameter = method.parameters.get(name)
    return parameter is not None and parameter.default is parameter.empty


def _name(stage: Any) -> str:
    """Return a stage's name, and that of the score it wraps."""
    if stage in (NoMerge(), AfterPrefill(), Softmax(), FullPrecision()):
        return ""
    inner = getattr(stage, "of", None)
    name: str = stage.spec_name
    return f"`{name}` of {_name(inner)}" if isinstance(inner, Score) else f"`{name}`"


def _profile(folder: Path, method: str) -> Path:
    """Save a profile of two layers with two heads of eight channels; return its path."""
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
