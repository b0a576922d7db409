"""Wrong arguments and hostile files: the type and message of the error that each one raises."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache

import foveate
from foveate.stream import Offload
from tests import zoo
from tests.chat.families import talker
from tests.stream import tiny

from .pictures import image

SPEC = "snapkv:budget=50%,window=4"
Call = Callable[[Path], Any]
ERRORS: dict[str, Call] = {}


def error(function: Call) -> Call:
    """Register a function that raises."""
    ERRORS[function.__name__.strip("_").replace("_", " ")] = function
    return function


def _session(spec: Any = SPEC, family: str = "llama", **how: Any) -> Any:
    return foveate.compress(zoo.build(family), spec, **how)


def _saved(folder: Path) -> Path:
    with _session() as session:
        session.prefill(**zoo.prompt("llama", lengths=(23, 40)))
        return session.save(folder / "context.safetensors")


def _loaded(path: Path, spec: str = SPEC, family: str = "llama") -> Any:
    with _session(spec, family) as session:
        return session.load(path)


def _chat(spec: str = SPEC, family: str = "llava", **how: Any) -> Any:
    who = talker(family)
    return foveate.Chat(who.model, who.processor, spec, **how)


def _prefilled(spec: str, family: str = "llama", **how: Any) -> Any:
    with _session(spec, family, **how) as session:
        return session.prefill(**zoo.prompt(family))


def _generated(**how: Any) -> Any:
    with _session("h2o:budget=50%") as session:
        return session.model.generate(**zoo.prompt("llama"), max_new_tokens=2, **how)


LAYERS = [tuple(torch.ones(3, 1, 2, 60, 8).unbind())]

for _name, _call in {
    "method not called": lambda _: _session(foveate.snapkv),
    "no policy": lambda _: _session(20),
    "wrong order": lambda _: foveate.compress(SPEC, zoo.build("llama")),
    "foreign model": lambda _: foveate.compress(torch.nn.Linear(2, 2), SPEC),
    "refused family": lambda _: _session(family=zoo.REFUSED_FAMILIES[0]),
    "no stats yet": lambda _: _session().stats,
    "expect nothing": lambda _: _session().expect(0),
    "strict budget": lambda _: _session("snapkv:budget=8,window=32", strict=True),
    "no vision": lambda _: _prefilled("lookm:budget=50%"),
    "no tokenizer": lambda _: _session("kvzip:budget=50%,reads=answers"),
    "no profile file": lambda f: _session(f"headkv:budget=50%,profile='{f / 'none.json'}'"),
    "static cache": lambda _: _generated(cache_implementation="static"),
    "no cache": lambda _: _generated(use_cache=False),
    "foreign cache": lambda f: _session().save(f / "x", cache=DynamicCache()),
    "not a number": lambda _: foveate.compress_tensors(
        SPEC, [tuple(x * torch.nan for x in LAYERS[0])]
    ),
    "no layers": lambda _: foveate.compress_tensors(SPEC, []),
    "shapes": lambda _: foveate.compress_tensors(
        SPEC, [(LAYERS[0][0], LAYERS[0][1], LAYERS[0][2][:, :1])]
    ),
    "padding on the right": lambda _: foveate.compress_tensors(
        SPEC, LAYERS, None, torch.arange(60)[None] < 50
    ),
    "no output weights": lambda _: foveate.compress_tensors("criticalkv:budget=50%", LAYERS),
    "unnamed argument": lambda _: foveate.snapkv("20%"),
    "unknown argument": lambda _: foveate.snapkv(budget="20%", windows=3),
    "argument out of range": lambda _: foveate.snapkv(budget="20%", kernel=4),
    "unknown name": lambda _: foveate.SnapKVPress,
    "no stage of that name": lambda _: foveate.snapkv(budget=0.2).but(selects=1),
    "calibrate nothing": lambda _: foveate.calibrate(zoo.build("llama"), "prefixkv:budget=50%", []),
    "calibrate a method without a profile": lambda _: foveate.calibrate(
        zoo.build("llama"), "knorm:budget=50%", []
    ),
    "no video": lambda f: foveate.read_video(f / "none.mp4"),
    "chat says nothing": lambda _: _chat().say(),
    "chat rewrites": lambda _: _chat(rewrites="never"),
    "chat keyword": lambda _: _chat(rewrite="follow"),
    "chat system keyword": lambda _: _chat(system="Be brief.").say("x", max_new_tokens=2),
    "chat beams": lambda _: _chat().say("x", num_beams=2),
    "chat cache": lambda _: _chat().say("x", past_key_values=DynamicCache()),
    "chat retry": lambda _: _chat().retry(),
    "chat image as a number": lambda _: _chat().say("x", images=[3]),
    "chat one image": lambda _: _chat().say("x", images=image(0)),
    "chat message": lambda _: _chat().say(
        messages=[{"role": "user", "content": [{"type": "text"}]}]
    ),
    "chat load": lambda f: foveate.Chat.load(_saved(f), *talker("llava")[:2]),
    "pipeline questions": lambda _: foveate.Pipeline(*talker("llava")[:2])("x"),
    "stream share": lambda _: foveate.Stream(tiny.model(), tiny.processor(), "snapkv:budget=50%"),
    "stream positions": lambda _: foveate.Stream(tiny.model(), tiny.processor(), positions="new"),
    "stream asked first": lambda _: foveate.Stream(tiny.model(), tiny.processor()).ask("x"),
    "stream sees nothing": lambda _: foveate.Stream(tiny.model(), tiny.processor()).see([]),
    "offload share": lambda _: Offload(most="20%"),
    "offload fetch": lambda _: Offload(fetch=0),
    "file missing": lambda f: _loaded(f / "none"),
    "file of another family": lambda f: _loaded(_saved(f), family="qwen2"),
    "file of another policy": lambda f: _loaded(_saved(f), "knorm:budget=50%"),
}.items():
    ERRORS[_name] = _call


@error
def file_cut(folder: Path) -> Any:
    path = _saved(folder)
    path.write_bytes(path.read_bytes()[:-40])
    return _loaded(path)


@error
def file_flipped(folder: Path) -> Any:
    path = _saved(folder)
    content = bytearray(path.read_bytes())
    content[-3] ^= 255
    path.write_bytes(content)
    return _loaded(path)


@error
def file_without_notes(folder: Path) -> Any:
    path = _saved(folder)
    save_file(load_file(path), path)
    return _loaded(path)


@error
def profile_of_other_layers(folder: Path) -> Any:
    path = folder / "scores.json"
    path.write_text(json.dumps({"0-0": [1.0], "7-0": [2.0]}))
    return foveate.import_head_scores(zoo.build("llama"), "headkv", path)


@error
def profile_nested(folder: Path) -> Any:
    path = folder / "profile.json"
    path.write_text("[" * 100_000)
    return _session(f"headkv:budget=50%,profile='{path}'")


@error
def block_in_block(folder: Path) -> Any:
    with _session(), _session():
        pass


def run_error(run: dict[str, Any], folder: Path) -> Any:
    """Call a function that raises; the caller records the error."""
    return {"returned": type(ERRORS[run["call"]](folder)).__name__}


def run_spec(run: dict[str, Any], folder: Path) -> Any:
    """Read a spec that is wrong; some are right under some methods, and printed."""
    return {"spec": foveate.policy(run["spec"]).spec}
