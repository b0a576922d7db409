"""Subjects of a benchmark: a model with a prompt of some length."""

from __future__ import annotations

import pydoc_data.topics
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel

from foveate.hf.model.devices import input_device
from foveate.loading.model import Loaded
from foveate_lab.bench.dims import build


@dataclass(frozen=True)
class Subject:
    """A model with a prompt of ``n`` tokens, of which the middle half counts as visual.

    ``random``: weights and tokens are drawn at random.
    """

    name: str
    model: PreTrainedModel
    ids: Int[Tensor, "1 n"]
    random: bool

    @property
    def vision(self) -> Bool[Tensor, "1 n"]:
        """Mask that is True at the tokens that count as visual."""
        n = self.ids.shape[1]
        visual = torch.zeros_like(self.ids, dtype=torch.bool)
        visual[:, n // 4 : 3 * n // 4] = True
        return visual

    @property
    def device(self) -> torch.device:
        """Device of the model's inputs."""
        return input_device(self.model)


def of_model(loaded: Loaded, tokens: int) -> Subject:
    """Return a loaded model with a prompt of prose."""
    ids = prose(loaded.tokenizer, tokens).to(input_device(loaded.model))
    return Subject(loaded.name, loaded.model, ids, random=False)


def with_ids_in_order(loaded: Loaded, tokens: int) -> Subject:
    """Return a loaded model with token ids 0, 1, 2 ..., modulo its vocabulary."""
    embeddings: Any = loaded.model.get_input_embeddings()
    ids = torch.arange(tokens, dtype=torch.long, device="cpu") % embeddings.num_embeddings
    return Subject(
        loaded.name, loaded.model, ids[None].to(input_device(loaded.model)), random=False
    )


def prose(tokenizer: Any, tokens: int) -> Int[Tensor, "1 n"]:
    """Return ``tokens`` tokens of English: Python's own reference manual, repeated."""
    topics: dict[str, str] = pydoc_data.topics.topics
    text = "\n\n".join(topic for _, topic in sorted(topics.items()))
    ids = tokenizer(text, verbose=False)["input_ids"]
    return torch.tensor([list(islice(cycle(ids), tokens))], dtype=torch.long, device="cpu")


def of_dims(name: str, tokens: int, *, layers: int | None = None) -> Subject:
    """Return a model of a named shape in bfloat16 with random weights and seeded random tokens. It
    is on the GPU if there is one.

    Raises:
        ModelNotFound: a name that is not in :data:`foveate_lab.bench.dims.DIMS`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return with_drawn_ids(name, build(name, device, torch.bfloat16, layers), tokens)


def with_drawn_ids(name: str, model: PreTrainedModel, tokens: int) -> Subject:
    """Return a model with random weights and ``tokens`` seeded random tokens."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(
        model.config.vocab_size, (1, tokens), generator=generator, device=generator.device
    )
    return Subject(name, model, drawn.to(input_device(model)), random=True)
