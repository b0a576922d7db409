"""Chat with several images: each turn shows another one, and the cache is compressed every time.

Prints, turn by turn, the question, the answer, and how many of the conversation's tokens the cache
holds. Without `session.rearm()` only the first turn would be compressed.
"""

import torch

import foveate
from foveate_demo import PROFILES, album, vision

TURNS = {
    "What is Anna's city?": "Lisbon",
    "What is Bruno's room?": "371",
    "What is Nora's city?": "Dublin",
}
SPEC = f"recommended:budget=50%,profile={PROFILES / 'recommended.safetensors'}"

model, processor = vision.load()
told = torch.empty(1, 0, dtype=torch.long)  # the conversation so far, as tokens
cache = None

with foveate.compress(model, SPEC) as session:
    for number, (image, question) in enumerate(zip(album.images(), TURNS, strict=True), start=1):
        text = f"Image {number}:\n<image>\nQuestion: {question}\nAnswer:"
        turn = processor(images=[image], text=text)  # this turn's words and image alone
        told = torch.cat([told, turn["input_ids"]], dim=1)
        output = model.generate(
            input_ids=told,
            attention_mask=torch.ones_like(told),
            pixel_values=turn["pixel_values"],
            image_sizes=turn["image_sizes"],
            past_key_values=cache,
            max_new_tokens=16,
            do_sample=False,
        )
        answer = processor.decode(output[0, told.shape[1] :], skip_special_tokens=True).strip()
        stats, right = session.stats, TURNS[question]
        verdict = "right" if right in answer else f"wrong, it is {right}"
        print(f"{question:22} {answer} ({verdict})")
        print(f"{'':22} {stats.kept_tokens:.1f} of {stats.seen} tokens held")
        told, cache = output, session.cache
        session.rearm()  # what comes next is compressed together with all before it
