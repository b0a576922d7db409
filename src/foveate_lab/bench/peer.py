"""Time and memory of NVIDIA kvpress, run in its own environment: it needs another transformers."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from foveate.errors import InvalidInput, MissingPackage, UnsupportedModel
from foveate.policies.policy import Policy
from foveate_lab.bench.subject import Subject

SIDE = Path(__file__).with_name("kvpress_side.py")
PRESSES = {
    "adakv": "AdaKVPress(SnapKVPress)",
    "chunkkv": "ChunkKVPress(SnapKVPress)",
    "compactor": "CompactorPress",
    "criticalkv": "CriticalKVPress(SnapKVPress)",
    "criticalkv+adakv": "CriticalAdaKVPress(SnapKVPress)",
    "cur": "CURPress",
    "duo_attention": "DuoAttentionPress",
    "expected_attention": "ExpectedAttentionPress",
    "finch": "FinchPress",
    "full": None,
    "h2o": "ObservedAttentionPress",
    "keydiff": "KeyDiffPress",
    "knorm": "KnormPress",
    "kvzip": "KVzipPress",
    "lagkv": "LagKVPress",
    "leverage": "LeverageScorePress",
    "non_causal_attention": "NonCausalAttnPress",
    "pyramidkv": "PyramidKVPress",
    "q_filters": "QFilterPress",
    "random": "RandomPress",
    "simlayerkv": "SimLayerKVPress",
    "snapkv": "SnapKVPress",
    "streaming_llm": "StreamingLLMPress",
    "think": "ComposedPress(SnapKVPress, ThinKPress)",
    "tova": "TOVAPress",
}
"""Press of each of Foveate's methods, with its default parameters."""
WITH_PROFILE = {"expected_attention": "ExpectedAttentionStatsPress"}


def alone(policies: Sequence[Policy]) -> list[str]:
    """Return the methods that have no press."""
    return [policy.name for policy in policies if policy.name not in PRESSES]


def kvpress(
    subject: Subject, policies: Sequence[Policy], python: str, *, rounds: int, steps: int
) -> list[dict[str, Any]]:
    """Measure every policy that kvpress has a press for, one row each. Columns: ``method``,
    ``budget``, ``press``, ``prefill_ratio`` (to its own stock prefill), ``peak_bytes``,
    ``kv_bytes`` with the indices of hidden pairs, ``decode_ms_per_token`` and ``decode_ratio`` (to
    its stock cache).

    Args:
        subject: the model and the prompt. The model is written to a temporary directory.
        policies: policies to compare; their budgets must be shares of the prompt.
        python: the interpreter of kvpress's environment.
        rounds: rounds per median.
        steps: decoding steps.

    Raises:
        UnsupportedModel: a vision-language model.
        MissingPackage: kvpress is not installed for that interpreter.
        InvalidInput: a budget that is not a share.
    """
    if hasattr(subject.model.config, "vision_config"):
        raise UnsupportedModel(
            f"kvpress is compared on text models only, and {subject.name} is a vision-language "
            "model. Give --model smollm2, the directory of a text model, or --dims."
        )
    presses = [_press_request(policy) for policy in policies if policy.name in PRESSES]
    with tempfile.TemporaryDirectory() as folder:
        if subject.random:
            subject.model.config.save_pretrained(folder)
        else:
            subject.model.save_pretrained(folder)
        request = {
            "model": folder,
            "random": subject.random,
            "dtype": str(subject.model.dtype)[6:],
            "device": subject.device.type,
            "ids": subject.ids[0].tolist(),
            "presses": presses,
            "rounds": rounds,
            "steps": steps,
            "threads": torch.get_num_threads(),
        }
        return _run_side(python, request)


def _press_request(policy: Policy) -> dict[str, Any]:
    press, amount = PRESSES[policy.name], policy.amount
    if getattr(policy.score, "profile", None) is not None:
        press = WITH_PROFILE.get(policy.name, press)
    if press is not None and amount.kind != "fraction":
        raise InvalidInput(
            f"kvpress takes shares of the prompt, not {amount.text}. Give a budget such as 20%."
        )
    keep = float(amount.value) if press is not None else 1.0
    budget = amount.text if press is not None else None
    return {"method": policy.name, "budget": budget, "press": press, "keep": keep}


def _run_side(python: str, request: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        done = subprocess.run(
            [python, str(SIDE)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError as error:
        raise InvalidInput(f"no Python at {python!r}: {error}") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        if "No module named 'kvpress'" in last:
            raise MissingPackage(
                f"--peer-python {python}",
                "kvpress",
                install="pip install kvpress, in an environment of its own",
            ) from error
        raise InvalidInput(f"kvpress failed: {last}") from error
    rows: list[dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    return rows
