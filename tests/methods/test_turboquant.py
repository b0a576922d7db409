"""TurboQuant against a literal reading of its algorithms, the paper's bounds, and opened codes."""

import math
from itertools import pairwise

import pytest
import torch
from scipy import integrate
from torch.testing import assert_close

import foveate
from foveate.cache.pairs import Form
from foveate.cache.pairs.ragged import store
from foveate.errors import InvalidBudget, InvalidParameter, MissingModality
from foveate.methods.turboquant import TurboLayout, TurboQuant, TurboQuantByModality
from foveate.ops import turbo_codes
from foveate.ops.ragged_decode import ragged_decode
from foveate.ops.turbo_decode import TILE, turbo_decode
from foveate.policies.protocols import Held
from tests import zoo
from tests.answers import DRAWN
from tests.core.test_storage import bytes_held

CPU = torch.device("cpu")


def literal_mse(x, bits, pi, levels):
    """Algorithm 1 of the unit vector of one vector, number by number."""
    d, norm = len(x), math.sqrt(sum(float(a) ** 2 for a in x))
    unit = [float(a) / norm for a in x]
    y = [sum(float(pi[i, j]) * unit[j] for j in range(d)) for i in range(d)]
    index = [min(range(2**bits), key=lambda k: abs(a - float(levels[k]))) for a in y]
    decoded = [sum(float(pi[i, j]) * float(levels[index[i]]) for i in range(d)) for j in range(d)]
    return unit, decoded, norm


def literal_product(x, bits, pi, s, levels):
    """Algorithm 2: Algorithm 1 with a bit less, and the signs of the projected error."""
    d = len(x)
    unit, decoded, norm = literal_mse(x, bits - 1, pi, levels)
    error = [a - b for a, b in zip(unit, decoded, strict=True)]
    gamma = math.sqrt(sum(a * a for a in error))
    signs = [1 if sum(float(s[i, j]) * error[j] for j in range(d)) >= 0 else -1 for i in range(d)]
    scale = math.sqrt(math.pi / 2) / d * gamma
    sketch = [scale * sum(float(s[i, j]) * signs[i] for i in range(d)) for j in range(d)]
    return [norm * (a + b) for a, b in zip(decoded, sketch, strict=True)]


@pytest.mark.parametrize("d", [16, 21])
@pytest.mark.parametrize(("bits", "sketch"), [(1, False), (2, True), (3, False), (4, True)])
def test_codes_are_decoded_as_a_literal_reading_of_the_algorithms_says(d, bits, sketch):
    draw = torch.Generator().manual_seed(d)
    x = torch.randn(6, d, generator=draw) * 10 ** torch.randn(6, 1, generator=draw)
    pi, s = turbo_codes.rotation(d, CPU), turbo_codes.projection(d, CPU)
    levels = turbo_codes.codebook(d, bits - sketch, CPU)
    codes, norms = turbo_codes.encode(x, bits, sketch)
    ours = turbo_codes.decode(codes, norms, d, bits)
    for row, decoded in zip(x, ours, strict=True):
        if sketch:
            expected = literal_product(row, bits, pi, s, levels)
        else:
            _, unit, norm = literal_mse(row, bits, pi, levels)
            expected = [norm * a for a in unit]
        assert_close(decoded, torch.tensor(expected), rtol=2e-5, atol=2e-5 * float(row.norm()))


@pytest.mark.parametrize("d", [4, 64, 128])
def test_levels_are_the_means_between_their_middles_under_the_density_of_lemma_1(d):
    def density(x):
        return (1 - x * x) ** ((d - 3) / 2)

    for bits in (1, 2, 3, 4):
        levels = turbo_codes.codebook(d, bits, CPU).double().tolist()
        middles = [(a + b) / 2 for a, b in pairwise(levels)]
        cells = zip([-1.0, *middles], [*middles, 1.0], strict=True)
        for level, cell in zip(levels, cells, strict=True):
            mass = integrate.quad(density, *cell, epsabs=0)[0]
            mean = integrate.quad(lambda x: x * density(x), *cell, epsabs=0)[0] / mass
            assert abs(level - mean) < 2e-4 / math.sqrt(d)


def test_the_rotation_is_orthogonal_and_the_same_everywhere():
    pi = turbo_codes.rotation(96, CPU)
    assert_close(pi @ pi.T, torch.eye(96), rtol=0.0, atol=1e-5)
    assert_close(pi[0, :3], torch.tensor([-0.021906, -0.066874, -0.090875]), rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_errors_are_those_of_the_theorems(bits):
    """Theorem 1 and the figures below it; Theorem 2: no bias, and its bound."""
    d = 128
    draw = torch.Generator().manual_seed(bits)
    # far from the distribution that the rotation makes: few large channels, as keys have
    x = torch.randn(3000, d, generator=draw) * torch.logspace(1, -2, d)
    codes, norms = turbo_codes.encode(x, bits)
    error = (turbo_codes.decode(codes, norms, d, bits) - x).square().sum(-1) / x.square().sum(-1)
    assert float(error.mean()) < math.sqrt(3) * math.pi / 2 * 4**-bits
    assert abs(float(error.mean()) / {1: 0.36, 2: 0.117, 3: 0.034, 4: 0.0095}[bits] - 1) < 0.05
    if bits == 1:
        return
    q = torch.randn(400, d, generator=draw)
    codes, norms = turbo_codes.encode(x, bits, sketch=True)
    exact, ours = q @ x.T, q @ turbo_codes.decode(codes, norms, d, bits).T
    sizes = q.square().sum(-1)[:, None] * x.square().sum(-1)
    assert (
        float(((ours - exact).square() / sizes).mean()) < math.sqrt(3) * math.pi**2 / d * 4**-bits
    )
    assert abs(float((ours * exact).sum() / exact.square().sum()) - 1) < 0.02


def random_pairs(counts, d=16, e=8, dtype=torch.float32):
    counts = torch.tensor(counts)
    n = int(counts.max())
    draw = torch.Generator().manual_seed(n)
    k, v = (torch.randn(*counts.shape, n, size, generator=draw).to(dtype) for size in (d, e))
    kept = torch.arange(n) >= n - counts[..., None]
    return store(k, v, torch.arange(n).expand(*counts.shape, n), kept, n)


def round_trip(x, bits, sketch=False):
    return turbo_codes.decode(*turbo_codes.encode(x, bits, sketch), x.shape[-1], bits)


@pytest.mark.parametrize(
    "counts", [[[40, 40], [40, 40]], [[40, 7], [0, 25]]], ids=["dense", "ragged"]
)
@pytest.mark.parametrize(("bits", "sketch", "residual"), [(3, False, 0), (4, True, 5)])
def test_every_pair_keeps_its_own_codes_whatever_happens_to_others(counts, bits, sketch, residual):
    pairs = random_pairs(counts)
    held = TurboQuant(bits=bits, sketch=sketch, residual=residual)(pairs)
    draw = torch.Generator().manual_seed(1)
    for _ in range(50):
        new = [torch.randn(2, 2, 1, size, generator=draw) for size in (16, 8)]
        pairs.append(*new)
        held.append(*new)
    assert held.crop(3)
    assert pairs.crop(3)
    assert int(held.rest.counts.max()) < residual + 33
    rows = torch.tensor([1, 0, 1])
    pairs.take_rows(rows)
    held.take_rows(rows)
    kept = (held.columns >= 0) & (held.columns % 3 > 0)
    held = held.only(kept).fork()
    ours, all_pairs = held.padded(), pairs.padded()
    coded = held.body.counts
    for b in range(3):
        for h in range(2):
            own = all_pairs.columns[b, h] % 3 > 0
            own &= all_pairs.columns[b, h] >= 0
            mine = ours.columns[b, h] >= 0
            k, v = all_pairs.k[b, h][own], all_pairs.v[b, h][own]
            m = int(coded[b, h])
            k = torch.cat([round_trip(k[:m], bits, sketch), k[m:]])
            v = torch.cat([round_trip(v[:m], bits), v[m:]])
            assert ours.columns[b, h][mine].tolist() == all_pairs.columns[b, h][own].tolist()
            assert_close(ours.k[b, h][mine], k, rtol=1e-5, atol=1e-5)
            assert_close(ours.v[b, h][mine], v, rtol=1e-5, atol=1e-5)
    again = TurboQuant(bits=bits, sketch=sketch, residual=residual).restored(
        held.tensors(), held.first
    )
    assert torch.equal(again.padded().k, ours.k)


@pytest.mark.parametrize(
    ("bits", "sketch"), [(1, False), (2, True), (3, False), (4, True), (4, False)]
)
@pytest.mark.parametrize("shape", [(21, 19), (64, 64)], ids=str)
def test_decoding_over_codes_is_decoding_over_what_they_say(bits, sketch, shape):
    """Heads longer than a tile and empty bodies included; with softmax-n, and in bfloat16."""
    pairs = random_pairs([[TILE + 70, 3], [0, 90]], *shape)
    held = TurboQuant(bits=bits, sketch=sketch, residual=4)(pairs)
    draw = torch.Generator().manual_seed(9)
    held.append(*(torch.randn(2, 2, 2, size, generator=draw) for size in shape))
    q = torch.randn(2, 6, 1, shape[0], generator=draw)
    for n in (0.0, 1.5):
        expected = ragged_decode(q, *held.opened().parts, 0.2, n)
        assert_close(turbo_decode(q, *held.parts, 0.2, n), expected, rtol=0.0, atol=2e-5)
    half = TurboQuant(bits=bits, sketch=sketch)(random_pairs([[60, 50]], *shape, torch.bfloat16))
    half.append(*(torch.randn(1, 2, 1, size).bfloat16() for size in shape))
    q = q[:1].bfloat16()
    expected = ragged_decode(q, *half.opened().parts, 0.2, 0.0)
    assert_close(turbo_decode(q, *half.parts, 0.2), expected, rtol=0.0, atol=0.03)


@pytest.mark.parametrize(("bits", "sketch", "residual"), [(4, False, 0), (3, True, 6)])
def test_bytes_are_known_before_there_are_any_pairs(bits, sketch, residual):
    pairs = random_pairs([[40, 12]], dtype=torch.bfloat16)
    held = TurboQuant(bits=bits, sketch=sketch, residual=residual)(pairs)
    assert held.nbytes == bytes_held(held)
    form = Form(2, 4, 16, 8, torch.bfloat16)
    known = TurboQuant(bits=bits, sketch=sketch, residual=residual).bytes_of(
        Held(pairs.counts, form, columns=40)
    )
    assert known == held.nbytes


@pytest.mark.parametrize(("size", "least"), [(128, 7.5), (64, 7.3)])
def test_half_of_the_pairs_in_four_bits_are_a_small_part_of_bfloat16(size, least):
    """Of 8B models at 4,096 tokens: 32 layers of 8 heads; norms, columns and the matrix count."""
    form = Form(8, 32, size, size, torch.bfloat16)
    kept = Held(torch.full((1, 8), 2048), form, columns=4096)
    stored = 32 * TurboQuant(bits=4).bytes_of(kept) + turbo_codes.rotation(size, CPU).nbytes
    full = 32 * 8 * 4096 * 2 * size * 2
    assert full / stored >= least


def test_it_adds_to_any_method_and_prints_as_it_is_written():
    policy = foveate.policy("snapkv+turboquant(bits=3):budget=20%")
    assert policy.store == TurboQuant(bits=3)
    assert foveate.policy(policy.spec) == policy
    both = foveate.policy("snapkv+turboquant(visual=3,text=4):budget=20%")
    assert both.store == TurboQuantByModality(visual=3, text=4)
    with pytest.raises(MissingModality, match="vision="):
        both.store(random_pairs([[8, 8]]))
    with pytest.raises(InvalidBudget, match="does not say how many"):
        foveate.policy("snapkv+turboquant(visual=3):budget=64MB")
    with pytest.raises(InvalidParameter, match=r"text=4.*visual="):
        foveate.turboquant(text=4)
    with pytest.raises(InvalidParameter, match="bits=1"):
        foveate.turboquant(bits=1, sketch=True)


def logits_of(model, inputs):
    """Logits of 40 tokens: more than a group, some of which are encoded while decoding."""
    how = {"max_new_tokens": 40, "return_dict_in_generate": True, "output_logits": True}
    return torch.stack(model.generate(**inputs, **how, logits_processor=DRAWN).logits)


@pytest.mark.parametrize("spec", ["turboquant", "random+turboquant(bits=3,sketch=true):budget=60%"])
def test_a_model_answers_from_codes_as_from_what_they_say(spec, monkeypatch):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(50, 31))
    with foveate.compress(model, spec):
        ours = logits_of(model, inputs)
    monkeypatch.setattr(TurboLayout, "decodes_as_codes", False)
    with foveate.compress(model, spec):
        opened = logits_of(model, inputs)
    assert_close(ours, opened, rtol=0.0, atol=2e-4)
    with foveate.compress(model, "full"):
        assert (logits_of(model, inputs) - ours).abs().max() > 1e-3
