"""DuoAttention: which heads hold the whole prompt, and the files that its authors publish."""

import pytest
import torch

import foveate
from foveate.errors import InvalidBudget, InvalidInput, ProfileMismatch
from foveate.hf.layer.support import model_name
from foveate.methods.duo_attention import filled, read_table
from foveate.vllm.plans.settings import check_policy
from tests import zoo
from tests.conformance.compare import check_generate
from tests.methods.visual import sets, visual
from tests.profiles import saved

SCORES = [[0.2, 0.9], [1.0, 0.0], [0.9, 0.5]]
ORDER = [(1, 0), (0, 1), (2, 0), (2, 1), (0, 0), (1, 1)]  # best first; equal ones as they stand
SINKS, RECENT = 2, 3


def literal(length, tokens):
    """(layer, head) -> positions kept: heads full in their order, then what is left, then ends."""
    ends = [*range(SINKS), *range(length - RECENT, length)]
    left = len(ORDER) * (tokens - len(ends))
    found = {}
    for place in ORDER:
        more = min(left, length - len(ends))
        middle = range(length - RECENT - more, length - RECENT)
        found[place] = sorted([*ends, *middle])
        left -= more
    assert left == 0
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("budget", [5, 8, 19, "60%", "99%"])
@pytest.mark.parametrize("lengths", [[40], [40, 22, 31]], ids=["alone", "left-padded"])
def test_the_best_heads_hold_all_and_the_others_their_ends(lengths, budget, dtype, tmp_path):
    given = visual(lengths, g=2, depth=3)
    given = given._replace(layers=[tuple(x.to(dtype) for x in qkv) for qkv in given.layers])
    profile = str(saved(tmp_path, "duo_attention", SCORES))
    policy = foveate.duo_attention(budget=budget, profile=profile, sinks=SINKS, recent=RECENT)
    kept = given.keeps(policy)
    for row, length in enumerate(lengths):
        expected = literal(length, int(policy.amount.tokens(torch.tensor([length]), 0)))
        for layer, one in enumerate(kept):
            ours = sets(one, row, given.pads[row])
            assert ours == [expected[layer, head] for head in range(2)]


@pytest.mark.parametrize("sparsity", [0.0, 0.25, 0.5, 0.75])
def test_a_budget_of_whole_heads_splits_them_as_the_release_does(sparsity):
    """``sparsify_attention_heads``: scores from their quantile on are retrieval heads."""
    scores = torch.rand(4, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theirs = scores >= (scores.quantile(sparsity) if sparsity else -1)
    length, ends = 80, 16
    tokens = int((theirs.double() * (length - ends) + ends).mean())
    counts = torch.tensor(filled(tuple(map(tuple, scores.tolist())), tokens, ends, length))
    assert torch.equal(counts.view(4, 8) == length, theirs)
    assert set(counts.tolist()) <= {length, ends}


def test_over_another_score_heads_choose_by_it(tmp_path):
    given = visual([40], depth=3)
    profile = saved(tmp_path, "duo_attention", SCORES)
    kept = given.keeps(foveate.policy(f"knorm+duo_attention:budget=12,profile='{profile}'"))
    counts = [int(n) for one in kept for n in one.counts[0]]
    assert counts == [0, 32, 40, 0, 0, 0]


# -------------------------------------------------------------------- files and models

TABLE = "-1.0e-04\t9.0e-01\n1.5e+00\t1.0e-04\n9.0e-01\t5.0e-01\n"


def test_the_authors_table_becomes_a_profile_of_the_model(tmp_path):
    model, inputs = zoo.build("llama"), zoo.prompt("llama", lengths=(23, 31, 40))
    path = tmp_path / "full_attention_heads.tsv"
    path.write_text(TABLE)
    profile = foveate.import_head_scores(model, "duo_attention", path)
    assert profile.by_layer == [[0.0, 0.9], [1.0, 1e-4], [0.9, 0.5]]
    assert profile.model == model_name(model)
    file = str(profile.save(tmp_path / "duo.json"))
    policy = foveate.duo_attention(budget="50%", profile=file, sinks=SINKS, recent=RECENT)
    event = check_generate(model, policy, inputs)
    assert sum(int(mask[2].sum()) for mask in event.kept.values()) == 20 * 6
    assert event.kept[1][:, 0].sum(-1).tolist() == [23, 31, 40]
    check_policy(policy)  # it is known beforehand, so vLLM can serve it


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "equally many"),
        ("0.1\t0.2\n0.3", "equally many"),
        ("0.1\tnan", "equally many"),
        ("0.1\tx", "could not convert"),
        ('{"0-0": [1]}', "could not convert"),
    ],
)
def test_what_is_no_table_is_refused(text, said, tmp_path):
    path = tmp_path / "heads.tsv"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        read_table(path)


def test_what_does_not_fit_says_what_to_do(tmp_path):
    path = tmp_path / "heads.tsv"
    path.write_text(TABLE + TABLE)
    with pytest.raises(InvalidInput, match=r"6 layers with 2 KV heads, and .* has 3 with 2"):
        foveate.import_head_scores(zoo.build("llama"), "duo_attention", path)
    with pytest.raises(InvalidInput, match=r"import_head_scores\(model, 'duo_attention', FILE\)"):
        foveate.duo_attention(budget="50%", profile=str(tmp_path / "none.json"))
    other = str(saved(tmp_path, "headkv", SCORES))
    with pytest.raises(ProfileMismatch, match="import_head_scores"):
        foveate.duo_attention(budget="50%", profile=other)
    mine = str(saved(tmp_path, "duo_attention", SCORES))
    with pytest.raises(InvalidBudget, match="384 tokens that are always kept"):
        foveate.duo_attention(budget=100, profile=mine, sinks=128, recent=256).check_strictly()
