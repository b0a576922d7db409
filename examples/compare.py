"""Compare: the same question to several methods at one budget, beside the full cache.

Prints a line for each method: the share of the cache's bytes that it holds, the seconds that
choosing took, and its answer. Methods are written as specs; `foveate methods` lists them.
"""

import foveate
from foveate_demo import album, vision

METHODS = ("full", "snapkv", "mixkv", "lookm", "keydiff", "streaming_llm", "random")
BUDGET = "25%"

model, processor = vision.load()
image = album.images()[1]
parts = [{"type": "image", "image": image}, {"type": "text", "text": "What is Bruno's city?"}]
inputs = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=True)
prompt = inputs["input_ids"].shape[1]

print(f"{'method':14} {'held':>6} {'chosen in':>9}  answer")
for name in METHODS:
    policy = foveate.policy(name if name == "full" else f"{name}:budget={BUDGET}")
    with foveate.compress(model, policy) as session:
        output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    answer = processor.decode(output[0, prompt:], skip_special_tokens=True).strip()
    stats = session.stats
    held = stats.bytes_after / stats.bytes_before
    print(f"{name:14} {held:6.1%} {stats.seconds:7.2f} s  {answer}")
