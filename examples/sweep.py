"""Sweep: the prompt is read once, and methods at many budgets branch from that one prefill.

Prints a table, methods down and budgets across: what is answered from each cache, and how many
of the answers are right. All nine caches come from one reading of the prompt.
"""

import torch

import foveate
from foveate.hf import branch, record
from foveate_demo import album, vision

METHODS = ("recommended", "snapkv:window=8", "lookm")
RIGHT = "tennis"
BUDGETS = ("10%", "25%", "50%")

model, processor = vision.load()
image = album.images()[1]
parts = [{"type": "image", "image": image}, {"type": "text", "text": "What is Bruno's sport?"}]
inputs = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=True)
prompt = inputs["input_ids"].shape[1]

recording = record(model, **inputs)  # the full cache, and what scores want to see of each layer
first = recording.logits.argmax(-1, keepdim=True)  # the prefill tells it, whatever is kept then
asked = torch.cat([inputs["input_ids"], first], dim=1)


def answer(method: str, budget: str) -> str:
    """Return the model's answer from the recorded prompt's compressed cache."""
    with foveate.compress(model, foveate.policy(method, budget=budget)) as session:
        cache = branch(session, recording)
        output = model.generate(asked, past_key_values=cache, max_new_tokens=9, do_sample=False)
    return processor.decode(output[0, prompt:], skip_special_tokens=True).strip()


print(f"{'':15}", *(f"{budget:26}" for budget in BUDGETS))
right = 0
for method in METHODS:
    answers = [answer(method, budget) for budget in BUDGETS]
    right += sum(RIGHT in each for each in answers)
    print(f"{method:15}", *(f"{each:26.26}" for each in answers))
print(f"{right} of 9 say {RIGHT}, which is right: methods need more or less of a prompt")
