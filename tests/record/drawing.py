"""The draw of the runs: which policy meets which model, mode and setting, by one seed."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import foveate
from tests import zoo

from .errors import ERRORS

DRAWN = 300
"""Runs that are drawn; commands and errors are listed, and come beside them."""

Run = dict[str, Any]
LISTS = tomllib.loads(Path(__file__).with_name("draws.toml").read_text(encoding="utf-8"))
SMALL = {"window": "4", "chunk": "16", "sampled": "false"}  # parameters for prompts of 40 tokens
HEADS = ("headkv", "sparsemm", "duo_attention")
MEASURED = ("fast_kvzip", "kvzap", "q_filters", "triattention")
READS_AGAIN = ("kvzip", "streammem")


class Deck:
    """Values of each factor, every one equally often and in a shuffled order."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self._left: dict[str, list[Any]] = {}

    def take(self, *values: Any) -> Any:
        """Return the next of these values."""
        left = self._left.setdefault(repr(values), [])
        if not left:
            left.extend(values)
            self.chance.shuffle(left)
        return left.pop()


def draw(seed: int = 0) -> dict[str, Run]:
    """Return the runs by id; those of models fill up what the other kinds leave of `DRAWN`."""
    deck = Deck(seed)
    parts = {"tensors": _tensors, "chat": _chats, "pipeline": _pipelines, "stream": _streams}
    others = [(kind, run) for kind, part in parts.items() for run in part(deck)]
    others += [("spec", {"spec": spec}) for spec in _wrong_specs(deck)]
    models = _models(deck)
    runs = [("model", next(models)) for _ in range(DRAWN - len(others))] + others
    runs += [("command", {"words": words}) for words in LISTS["commands"]["lines"]]
    runs += [("error", {"call": name}) for name in ERRORS]
    return {
        f"{kind}/{i:03} {_title(run)}": {"kind": kind, **run} for i, (kind, run) in enumerate(runs)
    }


def _title(run: Run) -> str:
    return " ".join(
        str(run[key]) for key in ("mode", "family", "spec", "words", "call") if key in run
    )


def _spec(name: str, deck: Deck, **more: str) -> str:
    """Return a spec of one method with parameters that fit a short prompt."""
    known = foveate.METHODS[name].parameters
    chosen = {key: value for key, value in SMALL.items() if key in known} | more
    if "budget" in known:
        chosen["budget"] = deck.take("50%", "30%", "16", "6KB")
    if name in (*HEADS, *MEASURED):
        chosen["profile"] = "PROFILE"
    return f"{name}:" + ",".join(f"{key}={value}" for key, value in chosen.items())


def _models(deck: Deck) -> Iterator[Run]:
    """Draw runs of models for ever: method by method, then sums, stores and prune stages."""
    methods = tuple(foveate.METHODS)
    while True:
        for policy in (*methods, *LISTS["sums"], *LISTS["stores"], *LISTS["prunes"]):
            few, mode = LISTS["families"], deck.take(*LISTS["modes"])
            families = few.get(mode, zoo.FAMILIES)
            if mode == "drafts":  # the draft model is a second Llama
                pass
            elif policy == "triattention":  # measured on texts
                families = ("llama", "qwen2")
            elif policy in (*HEADS, *MEASURED, *READS_AGAIN):
                families = few["calibrated"]
            elif policy in LISTS["prunes"]:
                families = few["vision"]
            yield {
                "mode": mode,
                "family": deck.take(*families),
                "spec": _spec(policy, deck) if policy in methods else policy,
                "attention": deck.take("sdpa", "eager"),
                "dtype": deck.take("float32", "float32", "float32", "bfloat16"),
                "images": deck.take(1, 1, 2),
                "seed": deck.chance.randrange(100),
            }


def _tensors(deck: Deck) -> Iterator[Run]:
    """Draw a run without a model for every method, with one parameter changed."""
    for name in foveate.METHODS:
        if name not in (*HEADS, *MEASURED):
            yield {
                "spec": _spec(name, deck, **deck.chance.choice([{}, *_choices(name)])),
                "groups": deck.take(1, 2),
                "lengths": deck.take((40,), (23, 31, 40)),
                "seed": deck.chance.randrange(100),
            }


def _choices(name: str) -> Iterator[dict[str, str]]:
    """Yield other values of a method's parameters, where they are listed or true and false."""
    method = foveate.METHODS[name]
    for key, parameter in method.parameters.items():
        if isinstance(parameter.default, bool) and key not in SMALL:
            yield {key: str(not parameter.default).lower()}
        if get_origin(hint := method.hints[key]) is Literal:
            yield from ({key: str(v)} for v in get_args(hint) if v != parameter.default)


def _chats(deck: Deck) -> Iterator[Run]:
    for _ in range(16):
        yield {
            "family": deck.take(*LISTS["families"]["chats"]),
            "spec": deck.take(*LISTS["chats"]),
            "rewrites": deck.take("keep", "follow"),
            "then": deck.take("fork", "save", "stream", "retry"),
        }


def _pipelines(deck: Deck) -> Iterator[Run]:
    for family in LISTS["families"]["chats"][::2]:
        yield {"family": family, "spec": deck.take(*LISTS["chats"]), "prefix": deck.take("", "It")}


def _streams(deck: Deck) -> Iterator[Run]:
    for spec in 2 * LISTS["streams"]:
        how = deck.take("true", "reindexed", "offload")
        yield {"spec": spec, "how": how, "saved": deck.take(True, False)}


def _wrong_specs(deck: Deck) -> Iterator[str]:
    names = [name for name, method in foveate.METHODS.items() if "budget" in method.parameters]
    yield from (wrong.replace("NAME", deck.take(*names)) for wrong in LISTS["wrong"])
