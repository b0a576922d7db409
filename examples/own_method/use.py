"""A method of one's own: used by its name as any other, alone and in a sum with another.

Prints the method's summary, and what two policies with it keep and answer. Once the package is
installed, `pip install --no-deps -e examples/own_method`, every program has the method by its name,
and `foveate methods` lists it; here it is imported, as it lies beside this file.
"""

import foveate_novelty  # noqa: F401  # its import registers the method

import foveate
from foveate_demo import album, vision

print(f"novelty: {foveate.METHODS['novelty'].summary}")

model, processor = vision.load()
image = album.images()[1]
parts = [{"type": "image", "image": image}, {"type": "text", "text": "What is Bruno's city?"}]
inputs = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=True)
prompt = inputs["input_ids"].shape[1]

for spec in ("novelty:budget=50%", "novelty+adakv:budget=50%,recent=24"):
    with foveate.compress(model, spec) as session:
        output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    answer = processor.decode(output[0, prompt:], skip_special_tokens=True).strip()
    stats = session.stats
    verdict = "right" if "Vienna" in answer else "wrong, it is Vienna"
    print(f"{spec:36} {stats.kept_tokens:5.1f} of {stats.seen} tokens: {answer} ({verdict})")
