"""SROIE: how answers are compared, sets of merchants, several receipts in a prompt."""

from __future__ import annotations

from pathlib import Path

import pytest

from foveate.errors import InvalidInput
from foveate_lab.eval.tasks import find_task
from tests.eval.benchmarks.conftest import samples
from tests.eval.benchmarks.published import FIELDS, Writes

ANSWERS = {"total": "1234.50", "date": "1/2/2018 ", "company": "99  mart", "address": "1 JLN A"}
COMPANIES = {
    "1": "MR. D.I.Y. (M) SDN BHD",
    "2": "Mr D.I.Y. (Kuchai)",
    "3": "Aeon Co",
    "4": "99 Mart",
}


@pytest.fixture
def receipts(tmp_path: Path) -> Path:
    """Receipts of three merchants, of which two are in the test set."""
    writes = Writes(tmp_path)
    for name, company in COMPANIES.items():
        writes.json(f"data/key/{name}.json", {"company": company, "total": f"RM{name}.00"})
        writes.image(f"data/img/{name}.jpg")
    return tmp_path


@pytest.mark.parametrize(("compare", "right"), [("text", [1, 1, 1, 0]), ("letters", [1, 1, 1, 1])])
def test_fields_are_compared_without_case_blanks_and_currency(
    compare: str, right: list[int], tmp_path: Path
) -> None:
    writes = Writes(tmp_path)
    writes.json("key/7.json", FIELDS)
    writes.image("img/7.jpg")
    task = find_task(f"sroie(compare={compare})={tmp_path}")
    found = samples(task)
    assert [one.labels["field"] for one in found] == list(ANSWERS)
    assert [task.metric(ANSWERS[one.labels["field"]], one) for one in found] == right
    assert task.metric("12345.0", found[0]) == 0  # the point counts in both


def test_each_merchant_is_in_one_set_under_all_its_spellings(receipts: Path) -> None:
    sets = {
        kind: {
            one.name.partition("/")[0]
            for one in samples(find_task(f"sroie(merchants={kind})={receipts}"))
        }
        for kind in ("test", "tuning", "all")
    }
    assert sets == {"test": {"3", "4"}, "tuning": {"1", "2"}, "all": set(COMPANIES)}


def test_a_prompt_of_several_receipts_has_one_of_a_merchant(receipts: Path) -> None:
    asked = samples(find_task(f"sroie_several(merchants=all)={receipts}"))
    assert len(asked) == 2  # the two of Mr. D.I.Y. are left, as they are of one merchant
    (names,) = {one.name.partition("/")[0] for one in asked}
    assert not {"1", "2"} <= set(names.split("+"))
    for one in asked:
        shown, name = len(one.images), one.name.partition("/")[2]
        assert shown == 2
        assert one.question == f"What is the total of {COMPANIES[name]}?"
        assert one.answers == (f"RM{name}.00",)


def test_questions_without_an_image_are_the_same_questions(receipts: Path) -> None:
    shown, blind = (
        samples(find_task(f"sroie{options}={receipts}")) for options in ("", "(image=none)")
    )
    assert [(one.question, one.answers) for one in shown] == [
        (one.question, one.answers) for one in blind
    ]
    assert all(one.images for one in shown)
    assert not any(one.images for one in blind)


def test_a_folder_without_a_receipt_of_the_set_is_refused(tmp_path: Path) -> None:
    writes = Writes(tmp_path)
    writes.json("key/1.json", {"company": COMPANIES["1"], "total": "1.00"})
    with pytest.raises(InvalidInput, match=r"no receipt of merchants=test. Use merchants=all"):
        samples(find_task(f"sroie={tmp_path}"))
