"""Names, specs and words as nobody should give them, and results that have them."""

from __future__ import annotations

from typing import Any

REVERSED = "\u202eabc"  # read from right to left, and all that follows, unless it is kept apart
PILE = "e" + "\u0301" * 60
LONG = "/".join(["a_very_long_folder_without_any_space"] * 6)
HTML = '<script>alert(1)</script><img src=x onerror="alert(2)">'
NAMES = [
    HTML,
    REVERSED,
    "$\\frac{1}{$",
    PILE,
    LONG,
    "",
    "\n\n a \n b\t\x00\x1b[31m",
    "\ud83d alone",
    "👩‍👩‍👧‍👦 ⚑ 日本語の長い名前",
    "\u200b\u200b\ufeff",
    "مرحبا بالعالم",
    "w" * 400,
]
SPECS = [
    "policy:budget=pyramid(amount=20%,beta=20),select=top_k(recent=4,sinks=4),"
    "merge=merge_nearest(by=cosine),store=kivi(bits=4,residual=128),"
    "score=window_attention(window=32,kernel=7),when=over_budget(),attend=softmax_n()",
    "headkv:budget=20%,profile=/home/someone/" + LONG + ".json",
    "headkv:budget=20%,profile=/home/someone/" + LONG + "2.json",
    "headkv:budget=20%,profile=$a$_{b.json",
    "headkv:budget=10%,profile=$\\frac{$.json",
    "headkv:budget=20%,profile=\u202egnirts.json",
    f"headkv:budget=20%,profile={PILE}.json",
    "headkv:budget=20%,profile=日本語の名前.json",
    *(f"snapkv:budget=20%,window={size}" for size in range(2, 54)),
]
DRAWN = 16  # methods whose kept keys are drawn, each in a chart of its own


def results() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A configuration and rows: every name is a task once; the first has all specs, and the numbers
    of the figures, on which no name stands.
    """
    configuration = {
        "schema": "foveate-results-1",
        "model": f"/home/{LONG}/{REVERSED}{HTML}",
        "tasks": NAMES,
        "specs": SPECS,
        "protocol": "query-aware",
        "limit": 4,
        "seed": 0,
        "versions": {"foveate": "0.1.0", REVERSED: LONG},
    }
    rows = [
        _row(task, spec, sample)
        for task in NAMES
        for spec in (["full", *SPECS] if task == NAMES[0] else ["full", *SPECS[:3]])
        for sample in range(4)
    ]
    return configuration, rows


def _row(task: str, spec: str, sample: int) -> dict[str, Any]:
    return {
        "task": task,
        "sample": str(sample),
        "spec": spec,
        "prediction": "x",
        "answers": ["x"],
        "score": sample % 2,
        "kv_bytes": 100 if spec == "full" else 20 + len(spec) % 17,
        "kv_bytes_full": 100,
        "kl": 0.5,
        "nll": 1.0,
        "agreement": 0.75,
        "compress_s": 0.01,
        "decode_s_per_token": 0.05,
        **(_analyses(spec, sample) if task == NAMES[0] else {}),
    }


def _analyses(spec: str, sample: int) -> dict[str, Any]:
    errors = {"feature_error": [] if spec == "full" else [0.1, 0.2, 0.3]}
    if sample:
        return errors
    if spec != "full":
        return {**errors, **({"kept_places": [0, 3, 7, 19]} if spec in SPECS[:DRAWN] else {})}
    return {
        **errors,
        "analyses": {
            "redundancy": [[0.2, 0.9], [0.4, 0.5], [0.1, 0.3]],
            "lorenz": [[0.3, 0.8, 1.0], [0.5, 0.9, 1.0], [0.6, 0.9, 1.0]],
            "gini": [0.5, 0.7, 0.8],
            "received": [[2.0, 0.5], [1.5, 0.7], [1.2, 0.9]],
            "ncar": [0.9, 0.5, 0.4],
            "within": [[0.5, 0.25, 0.25]] * 3,
            "across": [[0.75, 0.25, 0.0]] * 3,
            "divergence": [0.1, 0.2, 0.15],
            "keys": [[float(i), float(i * i % 7)] for i in range(20)],
        },
    }
