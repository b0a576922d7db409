"""A decoding step in a CUDA graph gives what the cache that grows gives. On a CPU the step itself
is repeated; tests/backends/test_fixed.py replays a trace of it there.
"""

import torch

import foveate
from benchmarks.gpu.rows import graphed
from foveate.hf.model.internals import CACHE
from tests import zoo
from tests.on_device import DEVICE, moved, there
from tests.pairs import by_turns

from .test_fixed import FAMILIES, SPECS, positions

STEPS = 6
ROOM = STEPS + 8  # and what a capture takes first
KERNELS = ["reference"] if DEVICE.type == "cpu" else ["reference", "triton"]


def repeated(step, cache):
    """What takes a step, on the tensors that it was made with."""
    if DEVICE.type == "cpu":
        return step
    replay = graphed(step)
    cache.reset()
    return replay


@by_turns(family=FAMILIES, spec=SPECS, kernels=KERNELS)
def test_a_captured_step_gives_what_the_growing_cache_gives(family, spec, kernels):
    model, inputs = there(family), moved(zoo.prompt(family, lengths=(40, 31)))
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(zoo.TEXT_FROM, zoo.VOCAB, (STEPS, 2, 1), generator=generator).to(DEVICE)
    token, logits = tokens[0].clone(), []
    with torch.no_grad(), foveate.ops.using(kernels), foveate.compress(model, spec) as session:
        cache = session.prefill(**inputs)
        still, mask = session.fixed(ROOM, cache=cache), inputs["attention_mask"]

        def step():
            place = positions(family, model, inputs, still)
            found = model(input_ids=token, **{CACHE: still}, position_ids=place).logits
            logits[:] = [found]
            return found

        take, found = repeated(step, still), []
        for each in tokens:
            token.copy_(each)
            take()
            found.append(logits[0].clone())
        expected = []
        for i, each in enumerate(tokens):
            place = positions(family, model, inputs, cache)
            seen = torch.nn.functional.pad(mask, (0, i + 1), value=1)
            made = {"input_ids": each, "position_ids": place, "attention_mask": seen}
            expected.append(model(**made, **{CACHE: cache}).logits)
    torch.testing.assert_close(torch.cat(found, 1), torch.cat(expected, 1), atol=2e-5, rtol=1e-5)
