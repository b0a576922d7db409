"""The demo model, loaded once, and the question that comes with it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from foveate_demo import album, vision


class Demo(NamedTuple):
    """The model, its processor, and the inputs of the question that comes along."""

    model: Any
    processor: Any
    inputs: Any

    def answer(self, **more: Any) -> str:
        """What the model answers, greedily."""
        out = self.model.generate(**self.inputs, max_new_tokens=16, do_sample=False, **more)
        said: str = self.processor.decode(out[0, self.inputs["input_ids"].shape[1] :], True)
        return said.strip()


@pytest.fixture(scope="session")
def demo() -> Demo:
    """Loads it from the user's cache, where the language model is unpacked at most once."""
    model, processor = vision.load()
    return Demo(model, processor, ask(processor, album.images(), album.QUESTION))


WHERE = "What is Anna's room?"


@pytest.fixture(scope="session")
def room(demo: Demo) -> str:
    """What it answers to that question about the first image."""
    return demo._replace(inputs=ask(demo.processor, album.images()[:1], WHERE)).answer()


def ask(processor: Any, images: Any, question: str) -> Any:
    """A question about images, as the model's inputs."""
    parts = [
        *({"type": "image", "image": image} for image in images),
        {"type": "text", "text": question},
    ]
    chat = [{"role": "user", "content": parts}]
    return processor.apply_chat_template(chat, tokenize=True)


@pytest.fixture(autouse=True)
def _no_gradients() -> Any:
    with torch.no_grad():
        yield
