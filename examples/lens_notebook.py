# %% [markdown]
# # The lens in a notebook
# What every layer and KV head keeps of a prompt, patch by patch and word by word. Open this file as
# a notebook (VS Code, or JupyterLab with jupytext), or run it as a script: it prints the answer,
# right or wrong, and the name and size of the page that it writes, `lens.html`.

# %%
import foveate
from foveate_demo import album, vision

model, processor = vision.load()
images = album.images()[1:2]
parts = [{"type": "image", "image": images[0]}, {"type": "text", "text": album.QUESTION}]
inputs = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=True)

# %% [markdown]
# An answer under a policy. The session remembers the model and the policy, which the lens needs.

# %%
with foveate.compress(model) as session:  # the policy: "recommended:budget=20%"
    output = model.generate(**inputs, max_new_tokens=16, do_sample=False)

said = output[0, inputs["input_ids"].shape[1] :]
answer = processor.decode(said, skip_special_tokens=True).strip()
print(f"{answer} ({'right' if answer == album.ANSWER else f'wrong, it is {album.ANSWER}'})")

# %% [markdown]
# The session's policy beside another method, both at two budgets, which get a slider. A notebook
# shows what a cell ends with: the page, in a frame.

# %%
shown = foveate.lens(session, processor, inputs, images, methods=["snapkv"], budgets=["20%", "50%"])
shown

# %%
path = shown.save("lens.html")
print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
