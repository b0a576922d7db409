"""Requests that an engine's connector, scheduler or model cannot serve are refused one by one."""

from types import SimpleNamespace

import pytest

from foveate.errors import InvalidParameter
from foveate.vllm.plans.boundaries import Boundaries, Every
from foveate.vllm.plans.plans import Offer
from foveate.vllm.plans.settings import settings_from
from foveate.vllm.startup.request_checks import (
    check_bidirectional,
    check_session,
    check_transfer,
)

AGAIN = "snapkv:budget=64,window=8,when=over_budget(every=64)"
NAMES = ["h2o:budget=20%", "knorm:budget=20%", AGAIN]
OFFER = Offer(settings_from({"foveate": {"policy": "snapkv:budget=20%", "policies": NAMES}}))


def plan(name=None, prompt=300, **extra):
    return OFFER.plan(({"foveate_policy": name} if name else {}) | extra, prompt)


@pytest.mark.parametrize(
    ("role", "extra"), [("kv_producer", {}), ("kv_both", {"kv_transfer_params": {"a": 1}})]
)
def test_what_another_engine_expects_is_handed_over_whole_or_not(role, extra):
    transfer = SimpleNamespace(kv_connector="NixlConnector", kv_role=role)
    check_transfer(transfer, plan("full"), extra)
    check_transfer(None, plan(), extra)
    check_transfer(SimpleNamespace(kv_connector="X", kv_role="kv_both"), plan(), {})
    with pytest.raises(InvalidParameter, match=r"NixlConnector .*Choose foveate_policy=full"):
        check_transfer(transfer, plan(), extra)


def test_prompts_do_not_go_on_where_answers_are_compressed_in_steps_ahead():
    ahead, going_on = SimpleNamespace(async_scheduling=True), SimpleNamespace(resumable=True)
    for scheduler, request, name in (
        (ahead, going_on, None),
        (ahead, SimpleNamespace(resumable=False), AGAIN),
        (SimpleNamespace(async_scheduling=False), going_on, AGAIN),
    ):
        check_session(scheduler, plan(name), request)
    with pytest.raises(InvalidParameter, match="--no-async-scheduling"):
        check_session(ahead, plan(AGAIN), going_on)


def image(start, end):
    return SimpleNamespace(mm_position=SimpleNamespace(offset=start, length=end - start))


def test_images_in_both_directions_stand_before_all_queries_of_a_score():
    check_bidirectional(plan(), [])
    check_bidirectional(plan(), [image(10, 100), image(120, 268)])  # 32 queries are read
    check_bidirectional(plan("knorm:budget=20%"), [image(10, 300)])
    check_bidirectional(plan("full"), [image(10, 300)])
    for name, images, said in (
        (None, [image(10, 269)], "reads the last 32 queries"),
        ("h2o:budget=20%", [image(10, 20)], "scores images while they are read"),
        (AGAIN, [image(10, 20)], "scores images while they are read"),
    ):
        with pytest.raises(InvalidParameter, match=said):
            check_bidirectional(plan(name), images)
    with pytest.raises(InvalidParameter, match="an image is read behind"):
        check_bidirectional(plan(foveate_context=100), [image(150, 200)])


@pytest.mark.parametrize(
    ("name", "first"),
    [
        (AGAIN, 348),
        ("h2o:budget=64,when=over_budget(every=64)", None),
        ("knorm:budget=64,when=over_budget(every=64)", 355),
    ],
)
def test_passes_that_a_policy_observes_have_no_drafts(name, first):
    """Drafts follow the first ``known`` tokens; the next boundary comes after 356."""
    offer = Offer(settings_from({"foveate": {"policy": name}}))
    boundaries = {0: Boundaries(292, 64, Every(64, False, True), 64, 64, 7)}
    made = offer.plan(None, 292)._replace(boundaries=boundaries)
    assert boundaries[0].after(300) == 356
    observed = 300 if first is None else first
    assert made.settle(300, 301, 304) == (304 if observed >= 304 else 301)
    assert made.settle(346, 347, 350) == max(347, min(350, 346 if first is None else first))
    assert made.settle(355, 356, 356) == 356  # known, so compressed
    assert made.settle(354, 355, 356) == 355  # a draft would reach the boundary
    assert made.settle(100, 292, 200) == 200  # the prompt itself
