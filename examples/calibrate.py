"""Calibrate: what the loss of a pair would do, measured on some prompts for another.

Prints how many tokens of the new prompt every layer keeps, as a bar, by the profile. A profile
belongs to the model; two prompts show it, and `foveate calibrate recommended` takes 48.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import foveate
from foveate_demo import album, vision

model, processor = vision.load()
anna, bruno, nora = album.images()


def prompt(image: Any, question: str) -> Any:
    """Return the model's inputs of a question about an image."""
    parts = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    return processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=True)


samples = [prompt(anna, "What is Anna's city?"), prompt(nora, "What is Nora's room?")]
profile = foveate.calibrate(model, "recommended", samples)

inputs = prompt(bruno, "What is Bruno's profession?")
with TemporaryDirectory() as folder:
    path = profile.save(Path(folder) / "recommended.safetensors")
    with foveate.compress(model, f"recommended:budget=20%,profile={path}") as session:
        output = model.generate(**inputs, max_new_tokens=12, do_sample=False)

print(f"a profile of {profile.layers} layers, fitted to {profile.samples} prompts")
for layer in session.stats.layers:
    print(f"layer {layer.layer:2}  {layer.tokens:5.0f} tokens  {'#' * round(layer.tokens / 4)}")
answer = processor.decode(
    output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True
).strip()
print(f"{answer} ({'right' if 'baker' in answer else 'wrong, he is a baker'})")
