"""StreamMem: against the paper's equations, written down as they stand, and a model's attention."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import foveate
from foveate.cache.layer import Layer
from foveate.cache.slots import Slots
from foveate.compression.pipeline import keep, score
from foveate.errors import InvalidInput, InvalidParameter
from foveate.methods.streammem import ChatAttention, FramePrototypes, WithPrototypes
from foveate.stages.score import TextPrior
from foveate.stream import Stream
from tests import zoo
from tests.backends.test_follow_up import Chat, Words, eager
from tests.jitter import other_side
from tests.stream import tiny
from tests.ties import choices

HEADS, GROUPS, D, TEXT, WORDS = 2, 2, 8, 3, 4


def compress(memory, frames, q, budget):
    """Section 3 for one layer. ``memory`` and each frame are (k, v) [h, n, d]; the memory's text
    stands first. Returns what is kept, as a set of (k, v) of all heads.
    """
    k, v = (torch.cat([one[i] for one in (memory, *frames)], dim=1) for i in (0, 1))
    visual = torch.arange(k.shape[1]) >= TEXT
    paid = torch.zeros(k.shape[1])
    for head in range(HEADS * GROUPS):
        attention = (q[head] @ k[head // GROUPS, visual].T / D**0.5).softmax(-1)  # eq. 1
        paid[visual] += attention.mean(0) / (HEADS * GROUPS)
    first, places, made = memory[0].shape[1], [], []
    for of_k, _ in frames:
        here = range(first, first := first + of_k.shape[1])
        alpha = paid[list(here)] / paid[list(here)].sum()
        mean = [torch.einsum("n,hnd->hd", alpha, x[:, list(here)]) for x in (k, v)]  # eq. 2
        places.append(min(here, key=lambda slot: float(paid[slot])))
        made.append(mean)
    rest = sorted(set(range(TEXT, len(paid))) - set(places), key=lambda slot: -paid[slot])
    kept = [*range(TEXT), *rest[: budget - TEXT - len(places)]]  # eq. 3
    return [(k[:, slot], v[:, slot]) for slot in kept] + [tuple(one) for one in made]


def as_layer(memory, frames, words, times):
    """The same as a layer whose last slots are those of the words, and as it is scored."""
    parts = (memory, *frames, words)
    k, v = (torch.cat([one[i] for one in parts], dim=1)[None] for i in (0, 1))
    held = k.shape[2] - WORDS
    of_memory = memory[0].shape[1]
    sizes = [0] * TEXT + [1] * (of_memory - TEXT)
    image = [-1 if not size else 0 for size in sizes]
    for number, (of_k, _) in enumerate(frames):
        image += [number + 1] * of_k.shape[1]
    image = torch.tensor([*image, *[-1] * WORDS]).expand(1, HEADS, -1)
    pos = torch.arange(k.shape[2]).expand(1, HEADS, -1)
    state = {} if times is None else {"times": times}
    q = words[2][None]
    again = Layer(
        q=q,
        k=k,
        v=v,
        slots=Slots(pos=pos, q_pos=pos[:, 0, -WORDS:], image=image),
        scale=D**-0.5,
        state=state,
    )
    seen = ChatAttention().again(again)
    slots = Slots(pos=pos[..., :held], q_pos=pos[:, 0, held - 1 : held], image=image[..., :held])
    return replace(again, k=k[:, :, :held], v=v[:, :, :held], slots=slots, state=seen)


def test_a_layer_keeps_what_the_equations_say():
    generator = torch.Generator().manual_seed(0)

    def drawn(n, heads=HEADS):
        return torch.randn(heads, n, D, generator=generator)

    memory, times, budget = (drawn(TEXT), drawn(TEXT)), None, 15
    policy = foveate.streammem(budget=budget)
    for sizes in ((9, 11), (7,), (5, 6, 8)):
        frames = [(drawn(n), drawn(n)) for n in sizes]
        words = drawn(WORDS), drawn(WORDS), drawn(WORDS, HEADS * GROUPS)
        expected = compress(memory, frames, words[2], budget)
        new = sum(sizes)
        if times is not None:
            times = torch.nn.functional.pad(times, (0, new))
        layer = as_layer(memory, frames, words, times)
        layer = replace(layer, slots=layer.slots.with_budget(torch.tensor([budget])))
        (kept,) = keep(policy, [score(policy, layer, recompressed=True)])
        chosen = kept.mask[0, 0].nonzero()[:, 0]
        assert torch.equal(kept.mask[0], kept.mask[0, :1].expand(HEADS, -1))  # one ranking
        ours = torch.stack([torch.stack([x[0, :, i] for x in (kept.k, kept.v)]) for i in chosen])
        theirs = torch.stack([torch.stack(one) for one in expected])
        for x in (ours, theirs):
            assert len(x) == budget
        order = [one[:, 0, 0, 0].argsort() for one in (ours, theirs)]
        torch.testing.assert_close(ours[order[0]], theirs[order[1]], atol=1e-5, rtol=1e-5)
        memory = tuple(x[0, :, chosen] for x in (kept.k, kept.v))
        times = layer.state["times"][..., chosen]


@pytest.mark.parametrize("lengths", [(40,), (23, 40)], ids=["alone", "left-padded"])
def test_the_words_of_a_chat_pay_what_the_model_pays_after_its_prompt(lengths):
    inputs, model = zoo.prompt("llava", lengths=lengths), eager("llava")
    policy = foveate.streammem(budget=0.6)
    with foveate.compress(model, policy, tokenizer=Chat()), choices() as made, torch.no_grad():
        model.generate(**inputs, max_new_tokens=1, do_sample=False)
    (choice,) = made
    words = torch.tensor(Words()("</user><model>", add_special_tokens=False)["input_ids"])
    visual = inputs["input_ids"] == model.config.image_token_id
    pixels = inputs["pixel_values"].split(1)
    for row, mask in enumerate(inputs["attention_mask"].bool()):
        ids = torch.cat([inputs["input_ids"][row, mask], words])[None]
        with torch.no_grad(), other_side():
            paid = model(input_ids=ids, pixel_values=pixels[row], output_attentions=True).attentions
        for one, theirs in zip(choice.scored, paid, strict=True):
            n, seen = int(mask.sum()), visual[row, mask]
            asked = theirs[0, :, n:, :n] * seen
            asked = (asked / asked.sum(-1, keepdim=True)).mean((0, 1))
            ours = one.scores.parts["saliency"][row, :, -n:]
            torch.testing.assert_close(ours, asked.expand_as(ours), atol=1e-5, rtol=1e-4)


def test_every_frame_of_a_stream_leaves_one_prototype():
    stream = Stream(tiny.model(), tiny.processor(), "streammem:budget=30", every=12)
    found, seen = [], []
    with choices() as made:
        for number in range(12):
            seen.append(number)
            stream.see(tiny.frame(number))
            if made:
                found.append((list(made), list(seen)))
                made.clear(), seen.clear()
    assert len(found) > 2
    for (choice,), frames in found:
        for one, kept in zip(choice.scored, choice.kept, strict=True):
            fresh = one.scores.parts["fresh"][0, 0] > 0
            assert set(one.layer.slots.image[0, 0, fresh].tolist()) - {-1} == set(frames)
            changed = (kept.k != one.layer.k).any(-1)
            assert int(changed[0, 0].sum()) == len(frames)
            assert bool(kept.mask[changed].all())


def test_what_it_needs_is_said():
    model = zoo.build("llava")
    with pytest.raises(InvalidInput, match="tokenizer="):
        foveate.compress(model, "streammem:budget=20")
    with pytest.raises(InvalidInput, match=r"Words has no such template.*proxy="):
        foveate.compress(model, "streammem:budget=20", tokenizer=Words())
    inputs = zoo.prompt("llava", lengths=(40,))
    for stage in ({"select": WithPrototypes()}, {"merge": FramePrototypes()}):
        policy = foveate.vnorm(budget=0.5).but(**stage)
        unfit = pytest.raises(InvalidParameter, match="score=chat_attention")
        with unfit, foveate.compress(model, policy):
            model.generate(**inputs, max_new_tokens=1, do_sample=False)
    assert isinstance(foveate.streammem(budget=20, proxy="hm").score, TextPrior)
