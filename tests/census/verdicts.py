"""Whether Foveate is exact for a type: all kept is the stock model bit by bit, and less kept is the
full cache with the rest masked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
from transformers import DynamicCache

import foveate
from foveate.errors import FoveateError
from foveate.hf.model.internals import CACHE
from tests.answers import DRAWN
from tests.conformance.oracle import event_of, oracle
from tests.jitter import WIDER

from .building import build
from .specimen import Inputs, NotBuilt, Specimen
from .verdict import Verdict

POLICIES = {
    "window": "snapkv:budget=30%,window=4",
    "column sums": "h2o:budget=30%",
    "ragged": "adakv:budget=30%,window=4",
}
ONE_SET = "recommended:budget=30%"  # for "ragged", where all heads of a layer keep one set
TOLERANCE = 3e-5 + 5 * WIDER  # of logits, which are of the order of one; some types are deep
GREEDY: dict[str, Any] = {
    "max_new_tokens": 4,
    "do_sample": False,
    "logits_processor": DRAWN,
    "output_logits": True,
    "return_dict_in_generate": True,
}


def prompts(specimen: Specimen) -> Iterator[tuple[str, Inputs]]:
    """A left-padded batch of every kind that the type takes."""
    if not specimen.needs_image:
        yield "text", specimen.prompt((23, 31, 40))
    if specimen.takes_images:
        yield "image", specimen.prompt((44, 60), images=1)
    if specimen.takes_images > 1:
        yield "images", specimen.prompt((72, 80), images=2)
    if specimen.takes_video:
        yield "video", specimen.prompt((72, 80), video=True)


def verdict(name: str, policies: tuple[str, ...] = tuple(POLICIES)) -> Verdict:
    """What Foveate does for a type."""
    try:
        specimen = build(name)
    except NotBuilt as reason:
        return Verdict(name, "not built", str(reason))
    try:
        return _checked(specimen, policies)
    except FoveateError as reason:
        return Verdict(name, "refused", str(reason).split(": ", 1)[-1])
    except AssertionError as wrong:
        return Verdict(name, "wrong", str(wrong))


def _checked(specimen: Specimen, policies: tuple[str, ...]) -> Verdict:
    foveate.compress(specimen.model, "full")  # refuses most of what it refuses
    steps, visual, layers = [], False, ""
    for step, inputs in prompts(specimen):
        step, inputs = comparable(specimen, step, inputs)
        whole(specimen, inputs, step)
        for policy in policies:
            session = less(specimen, inputs, f"{step}, {policy}", spec(specimen, policy))
            layers = f"{len(session.stats.layers)} of {len(session.cache.layers)}"
            visual = visual or _sees(session.cache)
        steps.append(step)
    if later := turns(specimen):
        steps.append(later)
    return Verdict(specimen.name, "exact", "", tuple(steps), layers, visual)


def spec(specimen: Specimen, policy: str) -> str:
    """The policy's spec for a type: where the cache stores latents, no budget is divided among
    heads.
    """
    latent = any(hasattr(part, "expand_kv") for part in specimen.model.modules())
    return ONE_SET if latent and policy == "ragged" else POLICIES[policy]


def comparable(specimen: Specimen, step: str, inputs: Inputs) -> tuple[str, Inputs]:
    """The batch; or a row alone, where the stock model does not take such a batch, or where what
    padding attends to changes its rows (sparse attention over blocks).
    """
    with suppress(RuntimeError, IndexError, ValueError):  # some towers take no such batch
        stock = answer(specimen, inputs)
        with oracle(specimen.model):
            if apart(answer(specimen, inputs), stock) <= TOLERANCE:
                return step, inputs
    alone = {"text": (40,), "image": (60,)}.get(step, (80,))
    images = {"image": 1, "images": 2}.get(step, 0)
    return f"{step}, one row", specimen.prompt(alone, images=images, video=step == "video")


def answer(specimen: Specimen, inputs: Inputs, **more: Any) -> Any:
    """A greedy answer with its logits; the same draws each time, for towers that draw."""
    torch.manual_seed(0)
    with torch.no_grad():
        return specimen.model.generate(**inputs, **{**GREEDY, **more})


def whole(specimen: Specimen, inputs: Inputs, step: str) -> None:
    """Everything kept is the stock answer, bit by bit."""
    stock = answer(specimen, inputs)
    with foveate.compress(specimen.model, "full"):
        ours = answer(specimen, inputs)
    assert torch.equal(ours.sequences, stock.sequences), f"{step}: all kept, another answer"
    same = [torch.equal(a, b) for a, b in zip(ours.logits, stock.logits, strict=True)]
    assert all(same), f"{step}: all kept, other logits in steps {same}"


def less(specimen: Specimen, inputs: Inputs, step: str, policy: str) -> Any:
    """Less kept is the full cache with the rest masked."""
    with foveate.compress(specimen.model, policy) as session:
        ours = answer(specimen, inputs)
    event = event_of(session.cache)
    assert event.kept, f"{step}: nothing was compressed"
    evicted = [not bool(kept.all()) for kept in event.kept.values()]
    assert all(evicted), f"{step}: layers kept whole: {evicted}"
    with oracle(specimen.model, event):
        theirs = answer(specimen, inputs)
    gap = apart(ours, theirs)
    assert gap <= TOLERANCE, f"{step}: {gap:.2g} from the masked full cache"
    return session


def turns(specimen: Specimen) -> str:
    """A second turn on a compressed cache."""
    kinds = dict(prompts(specimen))
    step = next(kind for kind in ("image", "text", "video") if kind in kinds)
    _, inputs = comparable(specimen, step, kinds[step])
    new = torch.full((len(inputs["input_ids"]), 3), 33)
    later = specimen.second_turn(inputs, new, 6)
    if later is None:
        return ""
    one, two = {"max_new_tokens": 1}, {"max_new_tokens": 3}
    with foveate.compress(specimen.model, spec(specimen, "ragged")) as session:
        answer(specimen, inputs, **one)
        event = event_of(session.cache)
        ours = answer(specimen, later, **{CACHE: session.cache}, **two)
    cache = DynamicCache(config=specimen.model.config)
    with oracle(specimen.model, event):
        answer(specimen, inputs, **{CACHE: cache}, **one)
        theirs = answer(specimen, later, **{CACHE: cache}, **two)
    gap = apart(ours, theirs)
    assert gap <= TOLERANCE, f"two turns: {gap:.2g} from the masked full cache"
    return "two turns"


def apart(ours: Any, theirs: Any) -> float:
    """The largest difference of logits, as a share of the largest logit where that is above one."""
    largest = max(1.0, max(float(x.abs().max()) for x in theirs.logits))
    pairs = zip(ours.logits, theirs.logits, strict=True)
    return max(float((a.float() - b.float()).abs().max()) for a, b in pairs) / largest


def _sees(cache: Any) -> bool:
    state = next(layer.state for layer in cache.layers if hasattr(layer, "state"))
    return state.tokens.seen_visual is not None and bool(state.tokens.seen_visual.any())
