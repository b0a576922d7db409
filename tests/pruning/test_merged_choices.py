"""What methods that merge keep, and what they make of the rest, against literal readings."""

import math
from dataclasses import replace

import pytest
import torch

from foveate.errors import InvalidParameter
from foveate.policies.pruning import TowerAttention
from foveate.policies.spec import make_stage

from .test_choices import LENGTH, VISUAL, WIDTH, best, entering, paid


def looked_at(seed=3):
    """The tokens of ``entering``, and what an image tower pays them."""
    draw = torch.Generator().manual_seed(seed)
    tokens = entering(layer=0)
    return replace(
        tokens,
        tower=TowerAttention(
            torch.rand(2, LENGTH, generator=draw), torch.randn(2, LENGTH, 4, generator=draw)
        ),
    )


@pytest.mark.parametrize(
    ("keep", "share", "count", "targets"), [("50%", 0.34, 4, 2), ("25%", 0.34, 2, 1)]
)
def test_visionzip_keeps_what_the_tower_looks_at_and_merges_the_rest(keep, share, count, targets):
    tokens = looked_at()
    chosen = make_stage("visionzip_prune", {"keep": keep, "contextual": share})(tokens)
    for row in range(2):
        dominant = best(tokens.tower.paid[row].tolist(), count, VISUAL)
        rest = [j for j in VISUAL if j not in dominant]
        kept = [rest[i * (len(rest) // targets)] for i in range(targets)]
        assert chosen.goes_on[row].nonzero()[:, 0].tolist() == sorted([*dominant, *kept])
        keys = torch.nn.functional.normalize(tokens.tower.keys[row], dim=-1)
        members = {j: [] for j in kept}
        for j in (j for j in rest if j not in kept):
            members[max(kept, key=lambda target: float(keys[j] @ keys[target]))].append(j)
        expected = tokens.hidden[row].clone()
        for target, others in members.items():
            if others:
                expected[target] += sum(tokens.hidden[row, j] for j in others) / len(others)
        torch.testing.assert_close(chosen.hidden[row], expected)


def test_visionzip_counts_each_image_by_itself():
    tokens = looked_at()
    image = tokens.image + (torch.arange(LENGTH) >= 11) * (tokens.image >= 0)
    stage = make_stage("visionzip_prune", {"keep": "50%", "contextual": 0.0})
    chosen = stage(replace(tokens, image=image))
    assert chosen.hidden is None
    for row in range(2):
        for part, count in ((range(7, 11), 2), (range(11, 19), 4)):
            found = [j for j in part if chosen.goes_on[row, j]]
            assert found == best(tokens.tower.paid[row].tolist(), count, part)


def test_visionzip_leaves_ends_of_lines_until_all_that_patches_make_goes_on():
    tokens, ends = looked_at(), [10, 14, 18]
    tokens.tower.paid[:, ends] = -torch.inf
    for keep, patches, line_ends in (("50%", 6, []), ("84%", 9, [10]), ("100%", 9, ends)):
        chosen = make_stage("visionzip_prune", {"keep": keep, "contextual": 0.34})(tokens)
        for row in range(2):
            found = [j for j in VISUAL if chosen.goes_on[row, j]]
            assert [j for j in found if j in ends] == line_ends
            assert len(found) == patches + len(line_ends)
        assert (chosen.hidden is None) == (keep != "50%")
        if chosen.hidden is not None:  # they are merged into nothing, and nothing into them
            others = tokens.hidden.clone()
            others[:, ends] += 1
            assert torch.equal(
                make_stage("visionzip_prune", {"keep": keep, "contextual": 0.34})(
                    replace(tokens, hidden=others)
                ).hidden[:, VISUAL[0] : 10],
                chosen.hidden[:, VISUAL[0] : 10],
            )
            assert torch.equal(chosen.hidden[:, ends], tokens.hidden[:, ends])


def rated_by(tokens, row):
    """The words behind the image that are like it, more than the average."""
    words, logits = range(19, LENGTH), tokens.hidden[row] @ tokens.hidden[row].T
    alike = dict.fromkeys(words, 0.0)
    for j in VISUAL:
        total = sum(math.exp(logits[j, word]) for word in words)
        for word in words:
            alike[word] += math.exp(logits[j, word]) / total / len(VISUAL)
    return [word for word in words if alike[word] > sum(alike.values()) / len(words)]


def clusters(x, at, count):
    """DPC-KNN, one token at a time: of each centre, its members."""
    size = WIDTH**0.5
    far = {i: {j: float((x[i] - x[j]).norm()) / size for j in at} for i in at}
    near = {i: sorted(far[i].values())[:count] for i in at}
    density = {i: math.exp(-sum(d * d for d in near[i]) / count) for i in at}
    most = max(max(row.values()) for row in far.values())
    apart = {}
    for i in at:
        denser = [far[i][j] for j in at if density[j] > density[i]]
        apart[i] = min(denser) if denser else most
    centres = sorted(at, key=lambda i: -apart[i] * density[i])[:count]
    members = {centre: [centre] for centre in centres}
    for i in (i for i in at if i not in centres):
        members[min(centres, key=far[i].get)].append(i)
    return members


@pytest.mark.parametrize(("recycled", "to_one", "some", "count"), [(1.0, 3, 9, 4), (0.5, 10, 5, 1)])
def test_sparsevlm_keeps_what_words_like_the_image_look_at(recycled, to_one, some, count):
    stage = make_stage(
        "sparsevlm_prune", {"at": 2, "keep": "25%", "recycled": recycled, "to_one": to_one}
    )
    first, tokens = entering(layer=0), entering(layer=2)
    notes = stage(first).notes
    chosen = stage(replace(tokens, notes=notes))
    for row in range(2):
        raters = rated_by(first, row)
        assert notes["raters"][row].nonzero()[:, 0].tolist() == raters
        assert raters
        each = [paid(tokens, row, [rater]) for rater in raters]
        mean = [sum(values) / len(raters) for values in zip(*each, strict=True)]
        kept = best(mean, 3, VISUAL)
        worth = best(mean, some, [j for j in VISUAL if j not in kept])
        members = clusters(tokens.hidden[row], worth, count)
        goes_on = chosen.goes_on[row] & tokens.vision[row]
        assert goes_on.nonzero()[:, 0].tolist() == sorted([*kept, *members])
        expected = tokens.hidden[row].clone()
        for centre, each in members.items():
            expected[centre] = sum(tokens.hidden[row, j] for j in each) / len(each)
        torch.testing.assert_close(chosen.hidden[row], expected)


def test_sparsevlm_where_no_words_follow_and_where_there_are_none():
    stage, tokens = make_stage("sparsevlm_prune", {"at": 2, "keep": "25%"}), entering(layer=0)
    until = torch.arange(LENGTH) < 19
    cut = {name: getattr(tokens, name)[:, until] for name in ("hidden", "pos", "image", "spot")}
    before = stage(replace(tokens, **cut)).notes["raters"]
    assert [bool(each.any()) for each in before] == [True, True]
    assert not bool((before & replace(tokens, **cut).vision).any())
    alone = {name: each[:, 7:19] for name, each in cut.items()}
    assert bool(stage(replace(tokens, **alone)).notes["raters"].all())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"at": "3|2"}, "ascend"),
        ({"at": "0|2"}, "ascend"),
        ({"at": "a"}, "ascend"),
        ({"at": "1|2"}, "give 2 shares"),
        ({"at": 1, "keep": 20}, "share"),
    ],
)
def test_sparsevlm_layers_and_shares_that_do_not_go_together(given, said):
    with pytest.raises(InvalidParameter, match=said):
        make_stage("sparsevlm_prune", given)
