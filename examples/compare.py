"""Compare: the same question to several methods at one budget, beside the full cache.

Prints a line for each method: the share of the cache's bytes that it holds, the seconds that
choosing took, and its answer, right or wrong: tokens kept at random answer nothing. Methods are
written as specs; `foveate methods` lists them.
"""

import foveate
from foveate_demo import PROFILES, album, vision

PROFILED = f"recommended:profile={PROFILES / 'recommended.safetensors'}"
METHODS = ("full", PROFILED, "recommended", "snapkv", "mixkv", "lookm", "random")
BUDGET = "25%"
RIGHT = "Vienna"

model, processor = vision.load()
image = album.images()[1]
parts = [{"type": "image", "image": image}, {"type": "text", "text": "What is Bruno's city?"}]
inputs = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=True)
prompt = inputs["input_ids"].shape[1]

print(f"{'method':14} {'held':>6} {'chosen in':>9}  answer")
for name in METHODS:
    policy = foveate.policy(name) if name == "full" else foveate.policy(name, budget=BUDGET)
    with foveate.compress(model, policy) as session:
        output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    answer = processor.decode(output[0, prompt:], skip_special_tokens=True).strip()
    stats = session.stats
    held = stats.bytes_after / stats.bytes_before
    shown = "with profile" if name == PROFILED else name
    verdict = "right" if RIGHT in answer else "wrong"
    print(f"{shown:14} {held:6.1%} {stats.seconds:7.2f} s  {answer} ({verdict})")
