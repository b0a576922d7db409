"""Compress: one question about three images, answered from the full cache and from a tenth of it.

Prints the two answers, and what the compressed cache kept: tokens per head, and bytes.
"""

import foveate
from foveate_demo import PROFILES, album, vision

model, processor = vision.load()  # a LlavaForConditionalGeneration of transformers
images = [{"type": "image", "image": image} for image in album.images()]
chat = [{"role": "user", "content": [*images, {"type": "text", "text": album.QUESTION}]}]
inputs = processor.apply_chat_template(chat, tokenize=True)
prompt = inputs["input_ids"].shape[1]


def answer() -> str:
    """Return the model's greedy answer."""
    output = model.generate(**inputs, max_new_tokens=16, do_sample=False)
    return processor.decode(output[0, prompt:], skip_special_tokens=True).strip()


# The pairs whose loss would do most, foretold one by one. The profile says how;
# `foveate calibrate recommended` measured it on the demo model. Without one, leave the policy out.
spec = f"recommended:budget=10%,profile={PROFILES / 'recommended.safetensors'}"

print(f"asked         {album.QUESTION}")
print(f"full cache    {answer()}")
with foveate.compress(model, spec) as session:
    print(f"10 % of it    {answer()}")

stats = session.stats
print(f"kept          {stats.kept_tokens:.1f} of {stats.seen} tokens per head")
print(f"right answer  {album.ANSWER}")
print(f"memory        {stats.bytes_after / 2**20:.2f} of {stats.bytes_before / 2**20:.2f} MiB")
