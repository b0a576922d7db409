"""What is measured: a model, and a prompt of a given length."""

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

    ``random`` says that weights and tokens are drawn.
    """

    name: str
    model: PreTrainedModel
    ids: Int[Tensor, "1 n"]
    random: bool

    @property
    def vision(self) -> Bool[Tensor, "1 n"]:
        """True at the tokens that count as visual."""
        n = self.ids.shape[1]
        visual = torch.zeros_like(self.ids, dtype=torch.bool)
        visual[:, n // 4 : 3 * n // 4] = True
        return visual

    @property
    def device(self) -> torch.device:
        """Where the model stands."""
        return input_device(self.model)


def of_model(loaded: Loaded, tokens: int) -> Subject:
    """A loaded model, and prose."""
    ids = prose(loaded.tokenizer, tokens).to(input_device(loaded.model))
    return Subject(loaded.name, loaded.model, ids, random=False)


def with_ids_in_order(loaded: Loaded, tokens: int) -> Subject:
    """A loaded model, and as many token ids from 0 on: of a smaller vocabulary from 0 again."""
    embeddings: Any = loaded.model.get_input_embeddings()
    ids = torch.arange(tokens, dtype=torch.long, device="cpu") % embeddings.num_embeddings
    return Subject(
        loaded.name, loaded.model, ids[None].to(input_device(loaded.model)), random=False
    )


def prose(tokenizer: Any, tokens: int) -> Int[Tensor, "1 n"]:
    """So many tokens of English that every Python has: its own reference manual, over and over."""
    topics: dict[str, str] = pydoc_data.topics.topics
    text = "\n\n".join(words for _, words in sorted(topics.items()))
    ids = tokenizer(text, verbose=False)["input_ids"]
    return torch.tensor([list(islice(cycle(ids), tokens))], dtype=torch.long, device="cpu")


def of_dims(name: str, tokens: int, *, layers: int | None = None) -> Subject:
    """A model of that shape in bfloat16 with random weights, on the GPU if there is one, and tokens
    drawn with a seed.

    Raises:
        ModelNotFound: a name that is not in :data:`foveate_lab.bench.dims.DIMS`.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return with_drawn_ids(name, build(name, device, torch.bfloat16, layers), tokens)


def with_drawn_ids(name: str, model: PreTrainedModel, tokens: int) -> Subject:
    """A model whose weights are drawn, and so many tokens drawn with a seed."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(
        model.config.vocab_size, (1, tokens), generator=generator, device=generator.device
    )
    return Subject(name, model, drawn.to(input_device(model)), random=True)
