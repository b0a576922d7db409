"""How what a transcription returns is compared with what was recorded of the papers' code.

`*_official_*` files hold what the released code returned, `*_paper_*` files and tensors what an
earlier literal reading of the paper returned. Theirs is float32, hence the tolerances.
"""

import torch

TOLERANCE = {"rtol": 1e-4, "atol": 1e-6, "check_dtype": False}
MERGED = {"rtol": 0, "atol": 1e-5, "check_dtype": False}


def sets(positions):
    """[h, s] in any order, none twice."""
    rows = [sorted(row) for row in positions.tolist()]
    assert all(len(row) == len(set(row)) for row in rows)
    return rows


def masked(masks):
    """[h, t] of zeros and ones."""
    return [row.nonzero()[:, 0].tolist() for row in masks]


def settled(scores, chosen):
    """``chosen`` of ``scores``, where equal scores at its border, of which torch's topk takes any,
    go to the earlier positions."""
    border = min(scores[i] for i in chosen)
    above = [i for i in scores if scores[i] > border]
    tied = sorted(i for i in scores if scores[i] == border)
    assert set(above) <= set(chosen) <= set(above + tied)
    return above + tied[: len(chosen) - len(above)]


def seeded(*shape):
    generator = torch.Generator().manual_seed(shape[0])
    return torch.randn(*shape, generator=generator, dtype=torch.float64)
