"""Interrupts at chosen lines of the library, and things that users do while they fall.

Everything is read with tiny models, first undisturbed, and again after each interrupt.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from transformers import DynamicCache, LlamaForCausalLM, PreTrainedModel

import foveate
from foveate.hf.model.internals import CACHE
from tests import zoo

Model = TypeVar("Model", bound=PreTrainedModel)
SOURCE = str(Path(foveate.__file__).parent)
SPEC = "snapkv:budget=50%,window=4"
PATIENCE = 60  # seconds: more than any call of a tiny model takes


class Interrupt(BaseException):
    """No exception that anybody catches."""


class Lines:
    """Counts the lines of the library that this thread runs, each with whether a pass goes on; at
    the ``at``-th it does something, such as raise.
    """

    def __init__(self, at: int | None = None, then: Callable[[], None] = lambda: None):
        self.at, self.then = at, then
        self.inside: list[bool] = []

    def __enter__(self) -> Lines:
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _called(self, frame: Any, event: str, arg: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(SOURCE) else None

    def _line(self, frame: Any, event: str, arg: object) -> Any:
        if event == "line":
            place = len(self.inside)
            self.inside.append(self.at is None and _in_a_pass(frame))
            if place == self.at:
                sys.settrace(None)
                self.then()
        return self._line


def _in_a_pass(frame: Any) -> bool:
    """Whether a module of the model is being called."""
    while frame is not None:
        if frame.f_code.co_name == "_call_impl":  # PyTorch's, around hooks and forward
            return True
        frame = frame.f_back
    return False


class Scene(NamedTuple):
    """A model, and what is done with it in a block (None: it opens its own). ``did`` returns all
    that must not change.
    """

    model: Any
    spec: str | None
    did: Callable[[Any, Any], list[torch.Tensor]]


@functools.cache
def scene(name: str) -> Scene:
    """By what is called."""
    if name == "generate":
        return Scene(zoo.fresh("llava"), SPEC, _generated)
    if name == "prefill":
        return Scene(growing(), "kvzip:budget=50%", _prefilled)
    if name == "calibrate":
        return Scene(zoo.fresh("llama"), None, _calibrated)
    return Scene(zoo.fresh("llama"), SPEC, _turns)


SCENES = ("generate", "prefill", "calibrate", "turns")


def growing() -> LlamaForCausalLM:
    """A model whose rotary module grows with the longest text that it has met (dynamic NTK), and
    whose prompts of 60 tokens are longer than it was trained for.
    """
    rotation = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    return drawn(LlamaForCausalLM, max_position_embeddings=48, rope_parameters=rotation)


def drawn(model_class: type[Model], **settings: Any) -> Model:
    """A tiny model of that class, with weights from one seed."""
    torch.manual_seed(0)
    config = model_class.config_class(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=200,
        eos_token_id=None,
        pad_token_id=0,
        **settings,
    )
    model = model_class(config).eval()
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.2)
    return model


ANSWER: dict[str, Any] = {
    "max_new_tokens": 3,
    "do_sample": False,
    "output_logits": True,
    "return_dict_in_generate": True,
}


def _generated(model: Any, session: Any) -> list[torch.Tensor]:
    """An answer about an image; then a prompt of the same length that nobody says anything of."""
    inputs = zoo.prompt("llava")
    logits = model.generate(**inputs, **ANSWER).logits
    embeds = model.get_input_embeddings()(inputs["input_ids"])
    of_images = session.prefill(inputs_embeds=embeds).layers[0].state.images()
    return [*logits, torch.tensor(of_images is not None)]


def _prefilled(model: Any, session: Any) -> list[torch.Tensor]:
    """A context that is read twice, and a question about it."""
    ids = torch.arange(20, 80)[None]
    model.model.rotary_emb.max_seq_len_cached = 48  # else it is of the latest answer, as in stock
    cache = session.prefill(input_ids=ids)
    asked = torch.cat([ids, torch.tensor([[30, 31]])], dim=1)
    return list(model.generate(asked, **{CACHE: session.fork(cache)}, **ANSWER).logits)


def _calibrated(model: Any, session: Any) -> list[torch.Tensor]:
    """A profile, and the model's own logits."""
    inputs = zoo.prompt("llama")
    profile = foveate.calibrate(model, "prefixkv:budget=50%", [inputs])
    stock = model(**inputs, **{CACHE: DynamicCache(config=model.config)})
    assert type(stock[CACHE].layers[0]).__name__ == "DynamicLayer"
    return [torch.tensor(profile.by_layer), stock.logits]


def _turns(model: Any, session: Any) -> list[torch.Tensor]:
    """Three turns, each compressed together with those before it."""
    ids, cache, logits = torch.arange(20, 60)[None], None, []
    for turn in range(3):
        if cache is not None:
            session.rearm(cache)
        said = model.generate(ids, **({CACHE: cache} if cache is not None else {}), **ANSWER)
        cache, logits = said[CACHE], [*logits, *said.logits]
        ids = torch.cat([said.sequences, torch.arange(100 + turn, 108 + turn)[None]], dim=1)
    return logits


def elsewhere() -> list[torch.Tensor]:
    """An answer of another model in a block of its own."""
    model = zoo.build("qwen2_vl")
    with foveate.compress(model, SPEC):
        return list(model.generate(**zoo.prompt("qwen2_vl"), **ANSWER).logits)


def told(did: Callable[[], list[torch.Tensor]]) -> Callable[[], list[torch.Tensor]]:
    """Does something in a thread of its own; what is returned waits for what it came to."""
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(did())
        except BaseException as error:  # the thread that asks says it
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def wait() -> list[torch.Tensor]:
        thread.join(PATIENCE)
        assert found, "the second thread waits for ever"
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    return wait


def equal(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    """To the bit."""
    return len(some) == len(others) and all(map(torch.equal, some, others))
