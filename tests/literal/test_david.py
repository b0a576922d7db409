"""DAVID's transcription returns what was recorded of its equations: its code is not released."""

import pytest
import torch
from torch.testing import assert_close

from tests.golden.vectors import papers

from . import david
from .recorded import TOLERANCE, sets, settled

DAVID = ["david_paper_H4kv4_Br10_Bs20_rho1.0_s1", "david_paper_H8kv2_Br16_Bs16_rho2.0_s0"]


def david_of(file):
    given, settings = papers(file)
    recent, selected = int(settings["B_r"]), int(settings["B_s"])
    return given, settings, given["image_mask"].bool().tolist(), recent, selected


def david_layers(given):
    for layer in range(8):
        yield layer, given[f"q.{layer}"][0], given[f"k.{layer}"][0]


@pytest.mark.parametrize("file", DAVID)
def test_david_scores_are_pooled_over_all_keys_the_recent_ones_too(file):
    given, settings, _, recent, _ = david_of(file)
    for layer, q, k in david_layers(given):
        scores = david.scores(q, k, recent)
        assert_close(scores, given[f"S.{layer}"], **TOLERANCE)
        pooled = david.pooled(scores, int(settings["kernel"]))
        assert_close(pooled, given[f"S_pooled.{layer}"], **TOLERANCE)


@pytest.mark.parametrize("file", DAVID)
def test_ncar_and_the_layers_to_decouple_are_those_recorded(file):
    given, settings, is_image, recent, _ = david_of(file)
    thetas = [david.ncar(q, k, is_image, recent) for _, q, k in david_layers(given)]
    assert_close(torch.tensor(thetas), given["theta"], **TOLERANCE)
    without = [theta * recent for theta in thetas]  # line 16 of Algorithm 1
    assert_close(torch.tensor(without), given["theta_without_1_over_r"], **TOLERANCE)
    threshold = float(settings["theta_T"])

    def recorded(name):
        return [bool(x) for x in given[f"decoupled_flag.{name}"]]

    assert david.decoupled_flags(thetas, threshold) == recorded("delta_lt")
    assert david.decoupled_flags(thetas, threshold, "delta_above") == recorded("delta_gt")
    assert david.decoupled_flags(thetas, threshold, "theta_below") == recorded("theta_lt")
    flags = david.decoupled_flags(without, threshold)
    assert flags == recorded("delta_lt_without_1_over_r")
    assert not any(flags)


@pytest.mark.parametrize(
    ("name", "decoupled", "split"),
    [
        ("unified", False, "text"),
        ("decoupled_text", True, "text"),
        ("decoupled_alg", True, "algorithm"),
    ],
)
@pytest.mark.parametrize("file", DAVID)
def test_david_keeps_what_is_recorded_with_ties_to_the_earlier(file, name, decoupled, split):
    """Pooling makes plateaus, and the record took any of equal scores at the border."""
    given, settings, is_image, recent, selected = david_of(file)
    rho, kernel = float(settings["rho"]), int(settings["kernel"])
    for layer, q, k in david_layers(given):
        pooled = david.pooled(david.scores(q, k, recent), kernel)
        kept = david.kept(pooled, is_image, recent, selected, rho, decoupled, split)
        recorded = sets(given[f"{name}.kept.{layer}"])
        for head, row in enumerate(given[f"S_pooled.{layer}"].tolist()):
            before = range(len(row) - recent)
            expected = []
            for modality in (True, False) if decoupled else (None,):
                own = [i for i in before if modality is None or is_image[i] == modality]
                chosen = [i for i in recorded[head] if i in own]
                expected += settled({i: row[i] for i in own}, chosen)
            assert kept[head] == sorted(expected) + list(range(len(row) - recent, len(row)))


def test_a_quota_without_candidates_goes_to_the_other_modality():
    scores = torch.tensor([[8.0, 7, 6, 5, 4, 3, 2, 1]])
    two_images = [False, True, False, False, False, True, False, False]
    kept = david.kept(scores, two_images, 1, 5, 3.0, True)  # floor(15 / 4) = 3 for vision
    assert kept == [[0, 1, 2, 3, 5, 7]]
    mostly_images = [True, True, True, False, True, True, True, True]
    kept = david.kept(scores, mostly_images, 1, 5, 0.5, True)  # 1 for vision, 4 for text
    assert kept == [[0, 1, 2, 3, 4, 7]]
