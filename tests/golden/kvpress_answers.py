"""What ``record_kvpress.py`` has kvpress answer: by its pipeline, and by ``with press(model)``."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import kvpress
import torch
from kvpress_model import Pass, drawn_prompt
from kvpress_presses import PRESSES
from torch import Tensor
from transformers import AutoTokenizer, LlamaForCausalLM

ASKED = ("keydiff", "snapkv", "streaming_llm", "tova", "adakv", "criticalkv")
STEPS, QUESTION = 6, 5


@contextmanager
def noted_logits(model: LlamaForCausalLM) -> Any:
    """Those of the last token of every pass of the whole model."""
    seen: list[Tensor] = []
    hook = model.register_forward_hook(lambda *of: seen.append(of[-1].logits[0, -1].clone()))
    yield seen
    hook.remove()


def words(ids: Tensor) -> str:
    return " ".join(f"w{i}" for i in ids[0].tolist())


def by_pipeline(model: LlamaForCausalLM, press: Any, context: Tensor, question: Tensor) -> Tensor:
    """[steps, vocabulary]: the context is compressed, then the question asked."""
    tokenizer = AutoTokenizer.from_pretrained(model.config.name_or_path, bos_token="")
    pipe = kvpress.KVPressTextGenerationPipeline(model=model, tokenizer=tokenizer)
    with noted_logits(model) as seen:
        asked = {"question": words(question), "max_new_tokens": STEPS}
        pipe(words(context), press=press, **asked)
    return torch.stack(seen)


def by_generate(model: LlamaForCausalLM, press: Any, prompt: Tensor) -> Tensor:
    """The same of one prompt that is compressed whole."""
    with press(model), noted_logits(model) as seen:
        model.generate(input_ids=prompt, max_new_tokens=STEPS, do_sample=False)
    return torch.stack(seen)


def answers(model: LlamaForCausalLM) -> Pass:
    """The model's weights, the prompt, and the logits of every token of the answers."""
    prompt = drawn_prompt()
    context, question = prompt[:, :-QUESTION], prompt[:, -QUESTION:]
    model.generation_config.eos_token_id = None
    out = {"prompt": prompt}
    for name in ASKED:
        press = PRESSES[name]
        out[f"pipeline_{name}"] = by_pipeline(model, press.made(), context, question)
        out[f"generate_{name}"] = by_generate(model, press.made(), prompt)
    return out | {f"model.{name}": weight for name, weight in model.state_dict().items()}
