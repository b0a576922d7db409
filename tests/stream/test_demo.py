"""A stream of the demo model, whose chat template numbers images."""

from __future__ import annotations

import torch

import foveate
from foveate_demo import album, vision


def test_its_answers_are_those_of_the_model_alone() -> None:
    model, processor = vision.load()
    images, question = album.images()[:2], "What is Anna's room?"
    content = [*({"type": "image", "image": image} for image in images)]
    inputs = processor.apply_chat_template(
        [{"role": "user", "content": [*content, {"type": "text", "text": question}]}],
        tokenize=True,
    )
    with torch.no_grad():
        output = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    stream = foveate.Stream(model, processor, "infinipotv:budget=4096")
    for image in images:
        stream.see(image)
    answer = stream.ask(question, max_new_tokens=8, do_sample=False)
    new = output[0, inputs["input_ids"].shape[1] :]
    assert answer.ids.tolist() == new.tolist()[: len(answer.ids)]
    assert len(answer.text) > 2
    assert stream.ask("Why?", follow_up=True, max_new_tokens=4).ids.numel()
