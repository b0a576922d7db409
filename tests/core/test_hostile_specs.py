"""Whatever is written as a spec is a policy that prints and reads back, or an error of ours."""

import dataclasses
import math
from fractions import Fraction
from functools import partial
from itertools import product
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import foveate
from foveate.errors import FoveateError, InvalidBudget, InvalidParameter, InvalidSpec
from foveate.policies.amount import MOST_BYTES, Amount
from foveate.policies.method import METHODS
from foveate.policies.parameters import MOST, Range
from foveate.policies.protocols import Score
from foveate.policies.spec import DEEPEST, LONGEST, STAGES, parse_value
from foveate.profiles.profile import Profile
from foveate.stages.recent import part
from foveate.stages.score import HeadMean, KeyNorm
from foveate.stages.select import TopK
from tests.fuzz import fuzzed

from .prompts import prompt
from .users import unchecked

OTHER_DIGITS = "\uff11\uff12"  # full-width 12, which int() reads
EDGES = [
    "nan",
    "inf",
    "-inf",
    "1e999",
    "-1e999",
    "-0",
    "-0.0",
    "0",
    "1",
    "-1",
    "1e300",
    "5e-324",
    "1e-99",
    "1_000",
    OTHER_DIGITS,
    "\u0663",
    "0x10",
    " 7 ",
    "1e5",
    ".5",
    "5.",
    "+3",
    "true",
    "null",
    "''",
    "'7'",
    "()",
    "10" * 20,
    "9" * 5000,
    str(2**31),
    str(2**63),
    "0." + "3" * 60,
    "20%",
    "1e99GB",
    "64MB",
    "[1, 2]",
    "top_k()",
    "key_norm",
    "top_k(recent=top_k())",
]
SPECS = [
    "snapkv:budget=20%,window=16,select=top_k(recent=8,sinks=4)",
    "mixkv+prefixkv+lookm.merge:budget=10%,window=0.5",
    "policy:score=text_prior(of=head_mean(of=column_sums)),budget=uniform(amount=4),select=top_k",
    "kivi:bits=4",
    "adakv(floor=0.3)+csp:budget='64 MB'",
]


def made(spec):
    """The policy of a spec, which reads back; None where it is refused."""
    with unchecked():
        try:
            policy = foveate.policy(spec)
        except FoveateError as error:
            refused = str(error)
        else:
            assert foveate.policy(policy.spec) == policy
            return policy
    assert 0 < len(refused) < 3000
    return None


LETTERS = st.sampled_from([*EDGES[:-3], *"():,=+.'\\% ", "of=", "(("]) | st.text(max_size=2)


@st.composite
def mutated(draw):
    """A spec that was right, with some of its letters replaced by others."""
    text = draw(st.sampled_from(SPECS))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        gone = draw(st.integers(0, 3))
        text = text[:at] + draw(LETTERS) + text[at + gone :]
    return text


@fuzzed
@given(spec=mutated() | st.text() | st.text(alphabet="abk:,=()+.'\\ %1e", max_size=40))
@example(spec="head_mean(of=" * 400)
@example(spec="snapkv:budget=20%,a)b=(1")
@example(spec="snapkv:budget=top_k()")
@example(spec="policy:score=5,budget=uniform(amount=4),select=top_k")
def test_any_text_is_a_policy_or_refused(spec):
    made(spec)


NAMES = [(name, key) for name, method in METHODS.items() for key in method.parameters]


@fuzzed
@given(
    place=st.sampled_from(NAMES),
    value=st.sampled_from(EDGES) | st.integers().map(str) | st.floats().map(repr),
)
def test_any_number_in_any_parameter_is_taken_or_refused(place, value):
    name, key = place
    rest = ",budget=50%" if "budget" in METHODS[name].parameters and key != "budget" else ""
    made(f"{name}:{key}={value}{rest}")


def numbers():
    """For every method and stage of ours, its numbers: the name, the type and the range of each."""
    owners = {name: method.hints for name, method in METHODS.items()} | {
        f"{name}()": get_type_hints(cls, include_extras=True)
        for name, cls in STAGES.items()
        if cls.__module__.startswith("foveate.")
    }
    found = {}
    for owner, hints in owners.items():
        for key, hint in hints.items():
            for kind in (hint, *get_args(hint)):
                for limits in getattr(kind, "__metadata__", ()):
                    found.setdefault(owner, []).append((key, get_args(kind)[0], limits))
    return found


NUMBERS = numbers()


def called(owner, key, value):
    """A method or a stage with that value, and with what it cannot do without."""
    make = STAGES[owner[:-2]] if owner.endswith("()") else METHODS[owner]
    known = {f.name for f in dataclasses.fields(make)} if make in STAGES.values() else make.hints
    of = get_type_hints(make).get("of")
    other = KeyNorm() if of is Score else next(iter(get_args(of)), "none")
    needed = {"budget": 0.5, "amount": 0.5, "profile": "none", "of": other}
    return make(**{name: given for name, given in needed.items() if name in known} | {key: value})


@pytest.mark.parametrize("owner", NUMBERS)
def test_every_number_has_a_range_that_is_kept_and_said(owner):
    for key, kind, limits in NUMBERS[owner]:
        assert isinstance(limits, Range)
        beyond = [limits.low - 1, limits.high + 1, 10**40, -(10**40), 10**5000]
        if kind is float:
            beyond = [*map(float, beyond[:-1]), math.nan, math.inf, -math.inf, 1e300]
        for value in beyond:
            with unchecked(), pytest.raises(InvalidParameter, match=f"^{key}=") as refused:
                called(owner, key, value)
            assert str(limits) in str(refused.value)


def ends(kind, limits):
    """Numbers at both ends of a range, and, of shares, some of many digits."""
    found = [limits.low, limits.high]
    if kind is float:
        found += [5e-324, 1e-9, 1 / 3, math.nextafter(limits.high, 0)]
    return [kind(number) for number in found if kind(number) in limits]


def outcome(make, read):
    """What comes of compressing a prompt: an error of ours, or whether the kept keys are finite."""
    try:
        kept = foveate.compress_tensors(make(), read.layers, read.vision, read.mask)
    except FoveateError as error:
        return str(error)
    return f"finite: {all(bool(one.k.isfinite().all()) for one in kept)}"


@pytest.mark.parametrize("owner", [owner for owner in NUMBERS if not owner.endswith("()")])
def test_numbers_at_the_ends_of_a_range_work_or_are_refused(tmp_path, owner):
    method, read, needed = METHODS[owner], prompt([40, 33], depth=2), {}
    if owner in ("duo_attention", "headkv", "sparsemm"):
        table = Profile(
            method=owner,
            model="",
            layers=2,
            samples=1,
            budget="",
            by_layer=[[0.0, 1e6], [1e-9, 0.5]],
        )
        needed = {"profile": str(table.save(tmp_path / "heads.json"))}
    budgets = ["0.0000001%", 40, MOST, f"{MOST_BYTES}B"] if "budget" in method.parameters else []
    numbers = [{key: value} for key, kind, limits in NUMBERS[owner] for value in ends(kind, limits)]
    for number, others in product(numbers, [{"budget": budget} for budget in budgets] or [{}]):
        came = outcome(partial(method, **needed, **others, **number), read)
        assert "finite: False" not in came, (number, others)
        assert "NaN" not in came, (number, others)


def test_a_spec_has_a_greatest_length_and_depth():
    with pytest.raises(InvalidSpec, match=f"at most {LONGEST}"):
        foveate.policy("snapkv:budget=20%," + " " * LONGEST)
    nested = "head_mean(of=" * DEEPEST + "column_sums" + ")" * DEEPEST
    score = foveate.policy(f"policy:score={nested},budget=uniform(amount=4),select=top_k").score
    assert isinstance(score, HeadMean)
    with pytest.raises(InvalidSpec, match="too many parentheses"):
        parse_value(f"head_mean(of=text_prior(of={nested}))")


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (MOST + 1, f"more than {MOST} tokens"),
        pytest.param(10**5000, "a number of about 5001 digits", id="huge"),
        (f"{MOST_BYTES + 1}B", f"more than {MOST_BYTES} bytes"),
        ("1e99GB", "more than"),
        ("9" * 5000, "is no amount"),
        (5e-324, "less than 0.0000001 %"),
        ("1e-99%", "less than"),
        ("1_000", "is no amount"),
        (OTHER_DIGITS, "is no amount"),
        ("1e99", "more than the whole prompt. Give"),
        ("-0", "keeps nothing"),
    ],
)
def test_an_amount_has_a_least_and_a_most(raw, says):
    with pytest.raises(InvalidBudget, match=says.replace(".", r"\.")):
        Amount.of(raw)


def test_amounts_at_the_ends_of_their_ranges_are_counted():
    lengths = torch.tensor([10])
    for raw, kept in ((MOST, MOST), (f"{MOST_BYTES}B", MOST_BYTES), ("0.0000001%", 1)):
        assert Amount.of(raw).tokens(lengths, 1).tolist() == [kept]


@pytest.mark.parametrize("share", [1 / 3, 0.1 + 0.2, 0.999999999999, 0.12345678901234567])
def test_a_share_of_many_digits_is_exact_for_prompts_of_any_length(share):
    counts = torch.tensor([0, 1, 3_000, 10**6, MOST])
    assert part(counts, share).tolist() == [int(Fraction(str(share)) * n) for n in counts.tolist()]


def test_a_stage_that_wraps_another_is_given_one():
    for spec in ("head_mean(of=5)", "text_prior(of=null)", "novelty(of='')"):
        with unchecked(), pytest.raises(FoveateError):
            parse_value(spec)
    with unchecked(), pytest.raises(InvalidParameter, match="of=5: give a stage that is a Score"):
        HeadMean(of=5)


def test_what_is_no_budget_stage_has_no_amount():
    for call in (
        lambda: foveate.policy("snapkv:budget=top_k()"),
        lambda: foveate.policy("snapkv:budget=top_k()", budget=0.2),
        lambda: foveate.snapkv(budget=0.2).but(budget=TopK()),
    ):
        with unchecked(), pytest.raises(InvalidParameter, match="is no budget stage"):
            call()
