"""Reading and writing pages of vLLM's GPU backends, in every order that the axes of its pool can
have in memory, against loops that know a pair by its address alone; without vLLM.
"""

import itertools

import pytest
import torch

from foveate.vllm.worker import pages

PAGES, LAYERS, HEADS, SLOTS, D = 7, 3, 2, 4, 5
SIZES = {"L": LAYERS, "B": PAGES, "H": HEADS, "N": SLOTS, "C": 2 * D}
ORDERS = ["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]


class Pool:
    """Flat memory of all layers, axes in this order, ``gap`` numbers after every page of a layer
    where pages are whole; ``cache`` is layer 1's, as vLLM hands it to a backend.
    """

    def __init__(self, order, gap=0, dtype=torch.float32):
        self.strides, step = {}, 1
        for axis in reversed(order):
            if gap and axis in "LB" and set(order[:2]) == {"L", "B"} and axis == order[1]:
                step += gap
            self.strides[axis] = step
            step *= SIZES[axis]
        self.memory = torch.full((step,), -1.0, dtype=dtype)
        sizes = [SIZES[axis] for axis in "BHNC"]
        strides = [self.strides[axis] for axis in "BHNC"]
        self.cache = self.memory.as_strided(sizes, strides, self.strides["L"])

    def address(self, page, head, slot, number):
        place = {"L": 1, "B": page, "H": head, "N": slot, "C": number}
        return sum(self.strides[axis] * at for axis, at in place.items())

    def number(self, page, head, slot, number):
        return float(self.memory[self.address(page, head, slot, number)])


LAYOUTS = [(order, 0) for order in ORDERS] + [("LBHNC", 3), ("LBNHC", 6), ("BLNHC", 4)]
ROW = torch.tensor([5, 0, 3, 6, 0], dtype=torch.int32)  # the last column is not this request's


@pytest.mark.parametrize(("order", "gap"), LAYOUTS)
@pytest.mark.parametrize("tokens", [1, 3, 4, 5, 8, 11, 15, 16])
def test_reading_finds_every_number(order, gap, tokens):
    pool = Pool(order, gap)
    pool.memory.copy_(torch.arange(len(pool.memory)))
    k, v = pages.read(pool.cache, ROW, tokens)
    assert k.shape == v.shape == (1, HEADS, tokens, D)
    for head, token, number in itertools.product(range(HEADS), range(tokens), range(D)):
        place = int(ROW[token // SLOTS]), head, token % SLOTS
        assert float(k[0, head, token, number]) == pool.number(*place, number)
        assert float(v[0, head, token, number]) == pool.number(*place, D + number)


@pytest.mark.parametrize(("order", "gap"), LAYOUTS)
@pytest.mark.parametrize("slots", [[0], [22, 3, 17, 8, 9, 27], list(range(12, 16))])
def test_writing_changes_those_slots_alone(order, gap, slots):
    pool = Pool(order, gap)
    k, v = torch.randn(2, len(slots), HEADS, D)
    pages.write(pool.cache, None, k, v, torch.tensor(slots))
    written = set()
    for i, head, number in itertools.product(range(len(slots)), range(HEADS), range(D)):
        place = slots[i] // SLOTS, head, slots[i] % SLOTS
        assert pool.number(*place, number) == float(k[i, head, number])
        assert pool.number(*place, D + number) == float(v[i, head, number])
        written |= {pool.address(*place, number), pool.address(*place, D + number)}
    untouched = [at for at in range(len(pool.memory)) if at not in written]
    assert bool((pool.memory[untouched] == -1).all())


def test_what_is_read_is_a_copy():
    pool = Pool("LBNHC")
    for tensor in pages.read(pool.cache, ROW, 6):
        tensor.fill_(7.0)
    assert bool((pool.memory == -1).all())


def test_pairs_take_the_caches_type():
    pool = Pool("LBNHC", dtype=torch.bfloat16)
    k, v = torch.randn(2, 3, HEADS, D)
    pages.write(pool.cache, None, k, v, torch.tensor([1, 2, 3]))
    assert torch.equal(pool.cache[0, :, 1:4, :D].transpose(0, 1), k.bfloat16())
    assert torch.equal(pool.cache[0, :, 1:4, D:].transpose(0, 1), v.bfloat16())
