"""One document, many questions: it is read and compressed once, saved, loaded, and then asked.

Prints the size of the saved file, and each question with its answer. The document is compressed
before any question is known; every question then works on a copy of the loaded cache.
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import foveate
from foveate_demo import PROFILES, album, vision

SPEC = f"recommended:budget=25%,profile={PROFILES / 'recommended.safetensors'}"
QUESTIONS = {"city": "Vienna", "sport": "tennis", "room": "371", "birthday": "2 November 1964"}

model, processor = vision.load()
tokenizer = processor.tokenizer
document = processor(images=[album.images()[1]], text="<image>\n")


def read(path: Path) -> None:
    """Read the document and save its compressed cache: once, perhaps on another day."""
    with foveate.compress(model, SPEC) as session:
        session.prefill(**document)
        session.save(path, tokenizer=tokenizer)
    full = session.stats.bytes_before / 2**20
    print(f"saved {path.stat().st_size / 2**20:.2f} MiB; the full cache has {full:.2f} MiB")


def ask(path: Path) -> None:
    """Load the cache, and answer each question from a fork of it."""
    with foveate.compress(model, SPEC) as session:
        context = session.load(path, tokenizer=tokenizer)
        for what, right in QUESTIONS.items():
            question = f"Question: What is Bruno's {what}?\nAnswer:"
            words = tokenizer(question, return_tensors="pt")["input_ids"]
            whole = torch.cat([document["input_ids"], words], dim=1)
            output = model.generate(
                whole, past_key_values=session.fork(context), max_new_tokens=16, do_sample=False
            )
            answer = processor.decode(output[0, whole.shape[1] :], skip_special_tokens=True)
            verdict = "right" if right in answer else f"wrong, it is {right}"
            print(f"{what:10} {answer.strip()} ({verdict})")


with TemporaryDirectory() as folder:
    read(Path(folder) / "document.safetensors")
    ask(Path(folder) / "document.safetensors")
