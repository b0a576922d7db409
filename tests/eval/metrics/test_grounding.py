"""Boxes and points, in the forms in which models answer."""

from __future__ import annotations

from typing import Any

import pytest
from PIL import Image

from foveate.prompts.sample import Sample
from foveate_lab.eval.benchmarks.screenspot import inside
from foveate_lab.eval.metrics.grounding import located

SCREEN = Image.new("RGB", (200, 100))
RESIZED = {"model_type": "qwen2_5_vl", "seen": ((448, 224),)}
QWEN2, QWEN3, INTERNVL = ({"model_type": name} for name in ("qwen2_vl", "qwen3_vl", "internvl"))


def scored(said: str, **facts: Any) -> float:
    """With the right box from 100 to 120 and from 50 to 60, on a screen of 200 x 100."""
    return inside(said, Sample("0", "?", (), (SCREEN,), facts={"box": (100, 50, 20, 10), **facts}))


def test_shares_are_of_what_the_model_sees() -> None:
    """Of the middle where LLaVA-1.5's processor crops, of a square where it pads."""
    for view, right, wrong in (
        ((50, 0, 150, 100), "[0.68, 0.55]", "[0.48, 0.55]"),
        ((0, -50, 200, 150), "[0.55, 0.545]", "[0.55, 0.56]"),
    ):
        assert (scored(right, view=view), scored(wrong, view=view)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        # pixels of the file, as nothing is known of the model
        ("[100, 50, 120, 60]", {}),
        ("(110, 55)", {}),
        ("110, 55", {}),
        ("The icon is at x=110, y=55.", {}),
        ("It is the 2nd icon: [100,50,120,60].", {}),
        ("[x1,y1,x2,y2] = [100, 50, 120, 60]", {}),
        ('{"x": 105, "y": 52, "width": 10, "height": 6}', {}),
        ("x1: 100, y1: 50, x2: 120, y2: 60", {}),
        ("\\boxed{(110, 55)}", {}),
        ("110px 55px", {}),
        # shares
        ("[0.5, 0.5, 0.6, 0.6]", {}),
        ("[.5,.5,.6,.6]", QWEN3),
        ("pyautogui.click(x=0.55, y=0.55)", RESIZED),
        ("55%, 55%", {}),
        ('<point x="55.0" y="55.4" alt="close">close</point>', {}),
        ("<points x1='55.0' y1='55.4'>", {}),
        ("<loc0512><loc0512><loc0614><loc0614> close", {}),
        # thousandths
        ("<box>[[500, 500, 600, 600]]</box>", INTERNVL),
        ("<ref>close</ref><box>[[500, 500, 600, 600]]</box>", {}),
        (
            "<|object_ref_start|>close<|object_ref_end|><|box_start|>(500,500),(600,600)<|box_end|>",
            QWEN2,
        ),
        ("<point>550 550</point>", {}),
        ("<bbox>500, 500, 600, 600</bbox>", {}),
        ('```json\n[{"bbox_2d": [500, 500, 600, 600], "label": "close"}]\n```', QWEN3),
        ('{"point_2d": [550, 550], "label": "2 closes"}', QWEN3),
        ("Action: click(start_box='(550,550)')", QWEN2),
        # pixels of the image as the processor made it
        ("[224, 112, 268, 134]", RESIZED),
        ('```json\n[\n\t{"bbox_2d": [224, 112, 268, 134], "label": "close"}\n]\n```', RESIZED),
        ('{"label": "tab 2 of 3", "bbox_2d": [224, 112, 268, 134]}', RESIZED),
        (
            '<tool_call>\n{"name": "computer_use", "arguments": {"action": "left_click", '
            '"coordinate": [246, 123]}}\n</tool_call>',
            RESIZED,
        ),
        ("<|box_start|>(246,123)<|box_end|>", RESIZED),
        ("(224, 112) to (268, 134)", RESIZED),
        # what the task says is meant
        ("[550, 550]", {**RESIZED, "coordinates": "thousand"}),
        ("[100, 50, 120, 60]", {**RESIZED, "coordinates": "image"}),
        ("[246, 123]", {**QWEN3, "coordinates": "resized", "seen": ((448, 224),)}),
    ],
)
def test_a_right_answer_is_right_in_every_form(said: str, facts: dict[str, Any]) -> None:
    assert scored(said, **facts) == 1.0


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        ("nowhere", {}),
        ("", {}),
        ("7", {}),
        ("[99, 50]", {}),
        ("[10, 50, 12, 60]", {}),
        ("[100, 50, 120, 60]", RESIZED),
        ("[500, 500, 600, 600]", RESIZED),
        ("[100, 50, 120, 60]", QWEN3),
        ('{"bbox_2d": [100, 50, 120, 60]}', QWEN3),
        ("bbox_2d", {}),
        ("[0.55, 0.55]", {"coordinates": "image"}),
        ("x1y1x2y2", {}),
    ],
)
def test_a_wrong_answer_is_wrong(said: str, facts: dict[str, Any]) -> None:
    assert scored(said, **facts) == 0.0


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        ('{"bbox_2d": [3, 4, 5, 6]}', (3, 4, 5, 6)),
        ("bbox_2d: 3, 4, 5, 6", (3, 4, 5, 6)),
        ("from 3-40 to 5-60", (3, 40, 5, 60)),
        ("at [-3, 4.5]", (-3, 4.5)),
        ("version 1.2.3", None),
        ("3d and 2d", None),
    ],
)
def test_numbers_are_those_that_stand_alone(said: str, numbers: tuple[float, ...] | None) -> None:
    found = located(said)
    assert (found.numbers if found else None) == numbers
