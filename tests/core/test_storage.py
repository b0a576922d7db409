"""Stored pairs behave as lists of pairs would, and hold no byte that they do not report."""

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from foveate.cache.pairs import GROWTH, DensePairs, RaggedPairs, store

from .lean import lean

D, E = 3, 2


class Token:
    """A number that no other pair has, from which key and value are made."""

    made = 0

    def __init__(self):
        Token.made += 1
        self.k = [Token.made + i / 8 for i in range(D)]
        self.v = [-Token.made - i / 8 for i in range(E)]


def as_tensors(tokens):
    """[b][h][n] tokens as keys and values."""
    return (
        torch.tensor([[[t.k for t in head] for head in row] for row in tokens]),
        torch.tensor([[[t.v for t in head] for head in row] for row in tokens]),
    )


def new_tokens(b, h, n):
    return [[[Token() for _ in range(n)] for _ in range(h)] for _ in range(b)]


def held_tensors(thing):
    """Every tensor that an object holds, however deep."""
    if isinstance(thing, torch.Tensor):
        return [thing]
    if isinstance(thing, dict):
        thing = thing.values()
    elif not isinstance(thing, (list, tuple)):
        thing = vars(thing).values() if hasattr(thing, "__dict__") else ()
    return [tensor for part in thing for tensor in held_tensors(part)]


def bytes_held(pairs):
    """Counted in storages, so that a view of something larger counts in full."""
    storages = {
        t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held_tensors(pairs)
    }
    return sum(size for address, size in storages.items() if address)


class Model:
    """The same as lists: rows[row][head] is a list of (column, token)."""

    def __init__(self, rows, fixed, next_column):
        self.rows, self.fixed, self.next_column = rows, fixed, next_column

    def append(self, tokens):
        self.rows = [
            [
                held + [(self.next_column + i, t) for i, t in enumerate(new)]
                for held, new in zip(heads, row, strict=True)
            ]
            for heads, row in zip(self.rows, tokens, strict=True)
        ]
        self.next_column += len(tokens[0][0])

    @property
    def late(self):
        return len(self.rows[0][0]) - self.fixed[0][0]

    def crop(self, count):
        if count > self.late:
            return False
        self.rows = [[held[: len(held) - count] for held in heads] for heads in self.rows]
        self.next_column -= count
        return True

    def take_rows(self, rows):
        self.rows = [[list(held) for held in self.rows[r]] for r in rows]
        self.fixed = [self.fixed[r] for r in rows]

    def fork(self):
        rows = [[list(held) for held in heads] for heads in self.rows]
        return Model(rows, self.fixed, self.next_column)

    def check(self, pairs):
        counts = [[len(held) for held in heads] for heads in self.rows]
        longest = max(max(row) for row in counts)
        assert pairs.counts.tolist() == counts
        assert pairs.longest == longest
        padded = pairs.padded()
        for columns in (pairs.columns, padded.columns):
            assert columns.tolist() == [
                [[-1] * (longest - len(held)) + [column for column, _ in held] for held in heads]
                for heads in self.rows
            ]
        assert padded.k.shape[2] == padded.v.shape[2] == longest
        for k, v, heads in zip(padded.k.tolist(), padded.v.tolist(), self.rows, strict=True):
            for head, held in enumerate(heads):
                empty = longest - len(held)
                assert k[head][empty:] == [token.k for _, token in held]
                assert v[head][empty:] == [token.v for _, token in held]
        assert pairs.nbytes == bytes_held(pairs)


class Storage(RuleBasedStateMachine):
    """Random operations on stored pairs and on lists, and on forks of both."""

    @initialize(
        b=st.integers(1, 3),
        h=st.integers(1, 3),
        n=st.integers(1, 8),
        data=st.data(),
        ragged=st.booleans(),
    )
    def begin(self, b, h, n, data, ragged):
        tokens = new_tokens(b, h, n)
        if ragged:
            slots = st.lists(st.booleans(), min_size=n, max_size=n)
            kept = [[data.draw(slots) for _ in range(h)] for _ in range(b)]
        else:
            count = data.draw(st.integers(1, n))
            subsets = st.permutations([True] * count + [False] * (n - count))
            kept = [[data.draw(subsets) for _ in range(h)] for _ in range(b)]
        columns = torch.arange(n).expand(b, h, n)
        self.pairs = store(*as_tensors(tokens), columns, torch.tensor(kept), first=n)
        self.model = Model(
            [
                [[(i, tokens[r][g][i]) for i in range(n) if kept[r][g][i]] for g in range(h)]
                for r in range(b)
            ],
            [[sum(kept[r][g]) for g in range(h)] for r in range(b)],
            n,
        )
        same = len({count for row in self.model.fixed for count in row}) == 1
        assert isinstance(self.pairs, DensePairs if same else RaggedPairs)
        assert self.pairs.compressed
        self.left = []

    @rule(count=st.integers(1, 40))
    def append(self, count):
        tokens = new_tokens(len(self.model.rows), len(self.model.rows[0]), count)
        self.model.append(tokens)
        self.pairs.append(*as_tensors(tokens))

    @rule(count=st.integers(0, 50))
    def crop(self, count):
        assert self.pairs.crop(count) == self.model.crop(count)

    @rule(data=st.data())
    def take_rows(self, data):
        b = len(self.model.rows)
        rows = data.draw(st.lists(st.integers(0, b - 1), min_size=1, max_size=4))
        self.model.take_rows(rows)
        self.pairs.take_rows(torch.tensor(rows))

    @precondition(lambda self: len(self.left) < 3)
    @rule()
    def fork(self):
        """Goes on with a fork; the original is left as it is."""
        self.left.append((self.pairs, self.model))
        self.pairs, self.model = self.pairs.fork(), self.model.fork()

    @precondition(lambda self: self.left)
    @rule()
    def back(self):
        """Goes on with an original; the fork is left as it is."""
        self.left.append((self.pairs, self.model))
        self.pairs, self.model = self.left.pop(0)

    @invariant()
    def same(self):
        if hasattr(self, "model"):
            for pairs, model in [(self.pairs, self.model), *self.left]:
                model.check(pairs)


Storage.TestCase.settings = settings(
    lean, max_examples=40, stateful_step_count=12, suppress_health_check=list(HealthCheck)
)


class TestStoredPairsBehaveAsListsOfPairs(Storage.TestCase):
    pass


def random_pairs(counts, n=20):
    """``counts`` [b][h] of ``n`` slots, kept at random."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.tensor(counts)
    order = torch.rand(*counts.shape, n, generator=generator).argsort(-1).argsort(-1)
    k = torch.randn(*counts.shape, n, D, generator=generator)
    v = torch.randn(*counts.shape, n, E, generator=generator)
    columns = torch.arange(n).expand(*counts.shape, n)
    return store(k, v, columns, order < counts[..., None], first=n)


def test_ragged_storage_has_one_place_per_kept_pair():
    pairs = random_pairs([[1, 20, 3], [7, 0, 2]])
    assert isinstance(pairs, RaggedPairs)
    kept = 1 + 20 + 3 + 7 + 0 + 2
    assert pairs.flat_k.shape == (kept, D)
    assert pairs.flat_v.shape == (kept, E)
    floats, columns, starts = 4 * kept * (D + E), 4 * kept, 8 * (6 + 1)
    assert pairs.nbytes == bytes_held(pairs) == floats + columns + starts


def test_a_head_that_keeps_nothing_is_all_empty_slots():
    pairs = random_pairs([[2, 0]])
    assert pairs.columns[0, 1].tolist() == [-1, -1]
    assert pairs.counts.tolist() == [[2, 0]]
    pairs.append(torch.ones(1, 2, 1, D), torch.ones(1, 2, 1, E))
    assert pairs.columns[0, 1].tolist() == [-1, -1, 20]
    assert pairs.padded().k[0, 1, -1].tolist() == [1.0] * D


def test_heads_that_keep_the_same_number_are_stored_dense_and_without_spare_room():
    pairs = random_pairs([[5, 5], [5, 5]])
    assert isinstance(pairs, DensePairs)
    assert pairs.nbytes == bytes_held(pairs) == 4 * 20 * (D + E) + 4 * 20
    assert pairs.padded().k.data_ptr() == pairs.k.data_ptr()  # nothing is copied


def test_pairs_that_were_never_compressed_are_columns_in_order():
    pairs = DensePairs(torch.zeros(2, 3, 0, D), torch.zeros(2, 3, 0, E))
    pairs.append(torch.ones(2, 3, 6, D), torch.ones(2, 3, 6, E))
    assert not pairs.compressed
    assert pairs.columns.tolist() == [[[0, 1, 2, 3, 4, 5]] * 3] * 2
    assert pairs.crop(4)
    assert pairs.columns.tolist() == [[[0, 1]] * 3] * 2
    assert not pairs.crop(3)
    assert pairs.size == 2


@pytest.mark.parametrize("counts", [[[8, 8]], [[3, 13]]], ids=["dense", "ragged"])
def test_a_thousand_decoded_tokens_copy_the_pairs_rarely_and_waste_little(counts):
    pairs = random_pairs(counts)
    growing = pairs if isinstance(pairs, DensePairs) else pairs.tail
    moves, address = 0, growing._k.data_ptr()
    for _ in range(1000):
        pairs.append(torch.zeros(1, 2, 1, D), torch.zeros(1, 2, 1, E))
        moves += growing._k.data_ptr() != address
        address = growing._k.data_ptr()
        spare = growing._k.shape[2] - growing.size
        assert spare <= max(GROWTH, growing.size // 16 + 1)
    # GROWTH at a time up to 16 * GROWTH slots, then a sixteenth at a time
    assert moves <= 16 + 13


def test_reserved_room_is_filled_without_a_copy():
    pairs = DensePairs(torch.zeros(1, 1, 0, D), torch.zeros(1, 1, 0, E))
    pairs.reserve(50)
    address = pairs._k.data_ptr()
    for _ in range(50):
        pairs.append(torch.ones(1, 1, 1, D), torch.ones(1, 1, 1, E))
    assert pairs._k.data_ptr() == address
    assert pairs.k.tolist() == torch.ones(1, 1, 50, D).tolist()
    pairs.reserve(10)
    assert pairs.size == 50


@pytest.mark.parametrize("counts", [[[8, 8]], [[3, 13]]], ids=["dense", "ragged"])
def test_a_fork_leaves_spare_room_behind_and_shares_nothing_that_changes(counts):
    pairs = random_pairs(counts)
    pairs.append(torch.ones(1, 2, 3, D), torch.ones(1, 2, 3, E))
    fork = pairs.fork()
    assert fork.nbytes < pairs.nbytes
    fork.append(torch.full((1, 2, 2, D), 2.0), torch.full((1, 2, 2, E), 2.0))
    pairs.append(torch.full((1, 2, 1, D), 5.0), torch.full((1, 2, 1, E), 5.0))
    assert pairs.padded().k[0, :, -4:, 0].tolist() == [[1.0, 1.0, 1.0, 5.0]] * 2
    assert fork.padded().k[0, :, -5:, 0].tolist() == [[1.0, 1.0, 1.0, 2.0, 2.0]] * 2
    assert fork.crop(5)
    assert not fork.crop(1)
    assert pairs.longest - fork.longest == 4


def test_a_fork_and_its_original_can_take_back_and_go_on_each_on_their_own():
    """Full to the last slot, in one head: the arrangement in which a copy is easiest to forget."""
    pairs = DensePairs(torch.zeros(1, 1, 4, D), torch.zeros(1, 1, 4, E))
    fork = pairs.fork()
    assert fork.crop(1)
    fork.append(torch.full((1, 1, 1, D), 2.0), torch.full((1, 1, 1, E), 2.0))
    assert pairs.k.tolist() == torch.zeros(1, 1, 4, D).tolist()
    assert pairs.crop(2)
    pairs.append(torch.full((1, 1, 2, D), 5.0), torch.full((1, 1, 2, E), 5.0))
    assert fork.k[0, 0, :, 0].tolist() == [0.0, 0.0, 0.0, 2.0]
    assert fork.v[0, 0, :, 0].tolist() == [0.0, 0.0, 0.0, 2.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("counts", [[[8, 8]], [[3, 13]]], ids=["dense", "ragged"])
def test_pairs_keep_the_type_they_came_in(counts, dtype):
    kept = torch.arange(20) < torch.tensor(counts)[..., None]
    zeros = torch.zeros(1, 2, 20, D, dtype=dtype)
    pairs = store(zeros, zeros, torch.arange(20).expand(1, 2, 20), kept, first=20)
    pairs.append(zeros[:, :, :2], zeros[:, :, :2])
    assert pairs.padded().k.dtype == pairs.fork().padded().v.dtype == dtype
