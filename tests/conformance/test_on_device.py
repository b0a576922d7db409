"""A short list for GPUs: a model there, compressed, answers like the oracle's full cache here.

On a CPU both stand on it. Every kind of storage, of kernel and of rule is in the list once.
"""

import pytest
import torch
from transformers import LogitsProcessor

import foveate
from tests import zoo
from tests.jitter import WIDER
from tests.on_device import DEVICE, moved, there

from .compare import recorded
from .oracle import oracle
from .policies import EVERY

# Of logits. Convolutions of a GPU may be worked out otherwise.
CLOSE = WIDER + (2e-5 if DEVICE.type == "cpu" else 1e-4)
LIST = [
    ("llama", "snapkv"),
    ("llava", "adakv"),
    ("qwen2_vl", "mixkv"),
    ("llava_onevision", "prefixkv"),
    ("internvl", "csp"),
    ("gemma3", "david"),
    ("idefics3", "lookm"),
    ("mllama", "dense"),
    ("qwen3_vl", "ragged"),
    ("llava", "dense, quantised"),
    ("qwen2_5_vl", "ragged, quantised"),
    ("mistral", "ragged, all layers together"),
    ("llava_next", "think"),
    ("llama", "h2o"),
    ("qwen2", "csp:budget=50%,decode_n=1.5,when=over_budget"),
    ("smolvlm", "rkv:budget=50%,window=4,every=2"),
]
# On a CPU they are interpreted, and have a test of their own: test_kernels.py
KERNELS = ["reference"] if DEVICE.type == "cpu" else ["reference", "triton"]
STEPS = 4


class _Given(LogitsProcessor):
    """One token after the other, whatever the logits are."""

    def __init__(self, tokens):
        self.tokens = iter(tokens.T)

    def __call__(self, input_ids, scores):
        token = next(self.tokens).to(scores.device)[:, None]
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)


def answered(model, inputs, tokens):
    """The logits of these tokens after the prompt, [b, STEPS, vocabulary]."""
    found = model.generate(
        **inputs,
        max_new_tokens=STEPS,
        logits_processor=[_Given(tokens)],
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return torch.stack(found.logits, 1).cpu()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize(("family", "policy"), LIST)
def test_a_model_there_answers_like_the_oracle_here(family, policy, kernels):
    inputs, rule = zoo.prompt(family, lengths=(31, 40)), EVERY[policy]
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(zoo.TEXT_FROM, zoo.VOCAB, (2, STEPS), generator=generator)
    model = there(family)
    with (
        foveate.ops.using(kernels),
        foveate.compress(model, rule),
        recorded(model, rule) as events,
    ):
        ours = answered(model, moved(inputs), tokens)
    assert events[0].kept
    assert all(not bool(kept.all()) for kept in events[0].kept.values())
    with oracle(zoo.build(family), *events):
        theirs = answered(zoo.build(family), inputs, tokens)
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=CLOSE)
