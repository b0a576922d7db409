"""Inputs of the language model: images through a trained or a perfect vision tower, and text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from foveate_demo import vision
from foveate_demo.processor import DemoProcessor, worded
from foveate_demo.questions import Album
from foveate_demo.scenes import Scene
from training.data import Reading
from training.tower import Eye

See = Callable[[Scene], Tensor]  # from a scene to its slots' embeddings [slots, hidden]


def perfect(model: PreTrainedModel, reading: Reading, words: list[int]) -> See:
    """Return a perfect vision tower: every slot gets its own token's embedding."""
    table = model.get_input_embeddings().weight

    def see(scene: Scene) -> Tensor:
        read = reading(scene)
        if read is None:
            raise ValueError(f"this scene has tokens that the vocabulary lacks: {scene.texts}")
        return table[torch.tensor(words)[torch.from_numpy(read[0]).flatten()]]

    return see


def trained(model: PreTrainedModel, checkpoint: Path) -> See:
    """Return the vision tower of a checkpoint."""
    state = torch.load(checkpoint, weights_only=True)["student"]
    return _seen_by(model, {k[4:]: v for k, v in state.items() if k.startswith("eye.")})


def shipped(model: PreTrainedModel) -> See:
    """Return the vision tower in the package."""
    parts = {"vision_tower.": "tower.", "multi_modal_projector.": "projector."}
    state = load_file(vision.WEIGHTS / "eye.safetensors")
    mine = {
        new + key.removeprefix(old): value.float()
        for key, value in state.items()
        for old, new in parts.items()
        if key.startswith(old)
    }
    return _seen_by(model, mine)


def _seen_by(model: PreTrainedModel, state: dict[str, Tensor]) -> See:
    eye = Eye(model.config).eval()
    eye.load_state_dict(state)

    @torch.no_grad()
    def see(scene: Scene) -> Tensor:
        pixels = torch.from_numpy(np.asarray(scene.image).copy()).permute(2, 0, 1)[None]
        return eye(pixels)[0][0]

    return see


def wording(album: Album, question: str) -> str:
    """Return the prompt, with an "<image>" for each image."""
    parts = [{"type": "image"}] * len(album.images) + [{"type": "text", "text": question}]
    return worded([{"role": "user", "content": parts}])[0]


def embedded(
    text: str,
    album: Album,
    see: See | None,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> Tensor:
    """Embed a text with images as [tokens, hidden]; without ``see`` the images are left out."""
    table = model.get_input_embeddings()
    parts: list[Tensor] = []
    for i, piece in enumerate(text.split(DemoProcessor.image_token)):
        if i > 0 and see is not None:
            parts.append(see(album.images[i - 1]))
        if piece:
            parts.append(table(torch.tensor(tokenizer(piece)["input_ids"])))
    return torch.cat(parts)
