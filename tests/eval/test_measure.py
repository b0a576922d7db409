"""One prefill for many policies gives the answers, and the bytes, of many prefills."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

import foveate
from foveate.errors import InvalidInput, MissingPackage
from foveate.hf.model.internals import CACHE
from foveate.loading.model import Loaded
from foveate.prompts.evidence import in_text, tokens_of
from foveate.prompts.prompt import read
from foveate.prompts.sample import PLACE, Sample
from foveate_lab.eval.answering.measure import measured
from foveate_lab.eval.answering.perplexity import perplexity
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.answering.shorten import without_middle
from foveate_lab.eval.contenders import contenders, resolved, separate
from foveate_lab.eval.metrics import exact
from foveate_lab.eval.metrics.milebench import choice
from foveate_lab.eval.task_registry import Task
from foveate_lab.eval.tasks import find_task
from tests.answers import certain

SPECS = contenders(
    separate(
        "oracle,snapkv:window=4,h2o,adakv:window=4,lookm,mixkv(window=4)+prefixkv,knorm,random,"
        "h2o:recent=0.25,when=over_budget,snapkv:window=4,store=kivi(bits=4,residual=4)"
    ),
    ["30%", "60%"],
)
TASK = find_task("three_documents")
GREEDY = {"do_sample": False, "output_logits": True, "return_dict_in_generate": True}
TIMES = {"prefill_s", "compress_s", "decode_s_per_token"}


def samples(count: int) -> list[Sample]:
    return list(TASK.samples(count, 0))


def alone(loaded: Loaded, sample: Sample, spec: str) -> tuple[str, bool, int]:
    """What the model certainly says, whether that is all of it, and what its cache holds, after a
    prefill of its own.
    """
    prompt = read(loaded, sample.text, list(sample.images))
    spans = tokens_of(loaded, prompt, sample.images, sample.evidence)
    model: Any = loaded.model
    policy = resolved(spec, [place for where in spans for place in where])
    with foveate.compress(model, policy) as session:
        out = model.generate(**prompt.inputs, max_new_tokens=TASK.longest, **GREEDY)
        held = session.stats.bytes_after
    sure = certain(out.logits)
    ids = out.sequences[0, prompt.tokens :][:sure]
    said = loaded.tokenizer.decode(ids, skip_special_tokens=True).strip()
    return said, sure == len(out.logits), held


@pytest.mark.parametrize(
    "timed",
    [pytest.param(True, marks=pytest.mark.slow), pytest.param(False, marks=pytest.mark.slow)],
)
def test_every_answer_is_that_of_a_run_of_its_own(loaded: Loaded, timed: bool) -> None:
    assert len(SPECS) == 20
    sample = samples(2)[timed]
    rows = list(measured(loaded, TASK, sample, SPECS, "query-aware", timed=timed))
    sums = [resolved(spec, ()).reads_column_sums for spec in SPECS]
    assert 0 < sum(sums) < len(SPECS)
    last = [spec for spec, reads in zip(SPECS, sums, strict=True) if reads]
    others = [spec for spec in SPECS if spec not in last]
    assert [row["spec"] for row in rows] == [FULL, *others, *last]
    assert timed == all(row["decode_s_per_token"] is not None for row in rows)
    for row in rows:
        said, all_of_it, held = alone(loaded, sample, row["spec"])
        assert row["prediction"].startswith(said), row["spec"]
        assert row["prediction"] == said or not all_of_it, row["spec"]
        assert row["kv_bytes"] == held, row["spec"]
    assert len({row["prediction"] for row in rows}) > 3  # or the budgets would change nothing


def test_a_row_does_not_depend_on_the_specs_beside_it(loaded: Loaded) -> None:
    """Bit for bit, in any order, with all others or alone."""
    (sample,) = samples(1)
    specs = [spec for spec in SPECS if "30%" in spec]

    def rows(*asked: str) -> dict[str, Any]:
        found = measured(loaded, TASK, sample, asked, "query-aware")
        return {row["spec"]: {k: v for k, v in row.items() if k not in TIMES} for row in found}

    all_rows = rows(*specs)
    assert len({row["nll"] for row in all_rows.values()}) > 5
    assert rows(*reversed(specs)) == all_rows
    for some in (specs[::2], specs[1::2], *([spec] for spec in specs[1:4])):
        assert rows(*some) == {spec: all_rows[spec] for spec in (FULL, *some)}


def test_a_question_that_comes_later_is_not_compressed(loaded: Loaded) -> None:
    """The context's cache is compressed; the question is read by it; then it answers."""
    (sample,) = samples(1)
    spec = "snapkv:budget=50%,window=4"
    *_, row = measured(loaded, TASK, sample, [spec], "query-agnostic")
    prompt = read(loaded, sample.text, list(sample.images))
    cut = in_text(loaded, prompt, sample.question, last=True)[0]
    ids, model = prompt.inputs["input_ids"], loaded.model
    assert row["tokens"] == cut < prompt.tokens
    with foveate.compress(model, spec) as session, torch.no_grad():
        session.expect(cut)
        out = model(
            input_ids=ids[:, :cut],
            pixel_values=prompt.inputs["pixel_values"],
            **{CACHE: None},
            use_cache=True,
        )
        cache, fed, logits = out[CACHE], ids[:, cut:], []
        assert session.stats.kept_tokens == cut // 2
        for _ in range(TASK.longest):
            logits.append(model(input_ids=fed, **{CACHE: cache}).logits[0, -1])
            fed = logits[-1].argmax()[None, None]
    said = [int(row.argmax()) for row in logits[: certain(logits)]]
    text = loaded.tokenizer.decode(said, skip_special_tokens=True).strip()
    assert row["prediction"].startswith(text)
    assert row["prediction"] == text or len(said) < len(logits)


def test_the_full_cache_is_nought_away_from_itself(loaded: Loaded) -> None:
    (sample,) = samples(1)
    full, whole, half = measured(loaded, TASK, sample, [FULL, "random:budget=50%"], "query-aware")
    for row in (full, whole):
        assert row["kl"] == pytest.approx(0, abs=1e-6)
        assert row["agreement"] == 1.0
        assert row["first_divergence"] is None
        assert max(row["feature_error"]) == 0
        assert len(row["feature_error"]) == 4  # three layers, and the embeddings
    assert half["kl"] > 1e-5
    assert half["nll"] > full["nll"]
    assert half["feature_error"][0] == 0 < half["feature_error"][1]
    assert half["kv_bytes"] < 0.6 * half["kv_bytes_full"]


def test_a_row_says_of_which_sample_it_is(loaded: Loaded) -> None:
    (drawn,) = samples(1)
    sample = replace(drawn, labels={"length": 9, "depth": 50})
    rows = [*measured(loaded, TASK, sample, ["knorm:budget=50%"], "query-aware")]
    assert [row["spec"] for row in rows] == [FULL, "knorm:budget=50%"]
    for row in rows:
        assert (row["task"], row["sample"], row["question"]) == (
            TASK.name,
            drawn.name,
            sample.digest,
        )
        assert row["labels"] == {"length": 9, "depth": 50}
        assert row["answers"] == list(drawn.answers)
        assert row["image_sizes"] == [list(image.size) for image in drawn.images]


def test_what_is_thought_of_the_reference_is_what_a_stock_cache_without_the_rest_thinks(
    loaded: Loaded,
) -> None:
    """KL and NLL over the reference's tokens, from logits that ``generate`` would not show."""
    (sample,) = samples(1)
    spec = "streaming_llm:budget=50%"
    full, row = measured(loaded, TASK, sample, [spec], "query-aware")
    prompt, model = read(loaded, sample.text, list(sample.images)), loaded.model
    p, q = [], []
    for into, policy in ((p, "full"), (q, spec)):
        with foveate.compress(model, policy) as session, torch.no_grad():
            out = model(**prompt.inputs, use_cache=True)
            into.append(out.logits[0, -1])
            reference = answer_ids(loaded, prompt, sample)
            for token in reference[:-1]:
                fed = torch.tensor([[token]])
                out = model(input_ids=fed, **{CACHE: session.cache})
                into.append(out.logits[0, -1])
    nll = -sum(float(x.log_softmax(-1)[t]) for x, t in zip(q, reference, strict=True))
    assert row["nll"] == pytest.approx(nll / len(reference), rel=1e-4)
    kl = [
        float((a.softmax(-1) * (a.log_softmax(-1) - b.log_softmax(-1))).sum())
        for a, b in zip(p, q, strict=True)
    ]
    assert row["kl"] == pytest.approx(sum(kl) / len(kl), rel=1e-3)
    assert full["kl"] == 0


def answer_ids(loaded: Loaded, prompt: Any, sample: Sample) -> list[int]:
    """The full cache's answer, from a copy of the model that no block is around."""
    import copy

    model: Any = copy.deepcopy(loaded.model)
    model.config.get_text_config()._attn_implementation_internal = "sdpa"
    model._forward_pre_hooks.clear()
    model._forward_hooks.clear()
    vars(model).pop("generate", None)
    out = model.generate(**prompt.inputs, max_new_tokens=TASK.longest, **GREEDY)
    if certain(out.logits) < len(out.logits):
        pytest.skip("on another CPU this model may say something else")
    ids: list[int] = out.sequences[0, prompt.tokens :].tolist()
    return ids


def test_the_score_after_the_first_token_leaves_it_out_on_both_sides(loaded: Loaded) -> None:
    (sample,) = samples(1)
    first, *_ = measured(loaded, TASK, sample, [], "query-aware")
    said = first["prediction"]
    prompt = read(loaded, sample.text, list(sample.images))
    begin = loaded.tokenizer.decode(answer_ids(loaded, prompt, sample)[:1])
    task = Task("t", "", TASK.samples, exact, TASK.longest)
    cases = {said: 1.0, begin.strip() + " else": 0.0, begin.strip(): None, "zzz": None}
    for answer, expected in cases.items():
        asked = Sample("0", sample.question, (answer,), sample.images)
        (row,) = measured(loaded, task, asked, [], "query-aware")
        assert row["prediction"] == said
        assert row["score_after_first"] == expected, answer


def test_a_list_of_specs_is_cut_between_specs_alone() -> None:
    assert separate("snapkv,h2o:recent=0.25,group=max, knorm ") == [
        "snapkv",
        "h2o:recent=0.25,group=max",
        "knorm",
    ]
    assert separate("mixkv(window=4)+lookm,policy:score=recency(),budget=uniform(amount=8)") == [
        "mixkv(window=4)+lookm",
        "policy:score=recency(),budget=uniform(amount=8)",
    ]


def test_without_evidence_there_is_no_oracle_and_everyone_else(loaded: Loaded) -> None:
    (drawn,) = samples(1)
    asked = Sample("0", "What?", ("this",), drawn.images)
    full, oracle, other = measured(
        loaded, TASK, asked, ["oracle:budget=20%", "random:budget=20%"], "query-aware"
    )
    assert "which oracle needs" in oracle["error"]["message"]
    assert {"score", "kl"} <= full.keys() & other.keys()


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (InvalidInput("no grade"), False),
        (MissingPackage("ANLS", "rapidfuzz", "eval"), True),
        (ValueError("of a programmer"), True),
    ],
)
def test_what_foveate_refuses_is_a_row_and_other_errors_end_the_run(
    loaded: Loaded, error: Exception, ends: bool
) -> None:
    """A metric that raises, for the second answer that it is shown."""
    (sample,) = samples(1)
    raised = iter([None, error, None])

    def metric(prediction: str, sample: Sample) -> float:
        if (now := next(raised)) is not None:
            raise now
        return 1.0

    task = replace(TASK, metric=metric, divisible=False)
    rows = measured(loaded, task, sample, ["random:budget=50%", "knorm:budget=50%"], "query-aware")
    assert next(rows)["score"] == 1.0
    if ends:
        with pytest.raises(type(error), match=re.escape(str(error))):
            next(rows)
        return
    refused, other = rows
    assert refused == {
        "task": TASK.name,
        "sample": "0",
        "spec": "random:budget=50%",
        "labels": {},
        "error": {"type": "InvalidInput", "message": "no grade"},
    }
    assert other["score"] == 1.0


def test_a_reference_is_told_to_every_cache(loaded: Loaded) -> None:
    """Its likelihood is that of the prompt with the reference behind it, read at once; a policy's
    that of a stock cache without what it let go.
    """
    (drawn,) = samples(1)
    sample = replace(drawn, answers=("a red cat sat", "other"))
    task = replace(TASK, reference=True)
    spec = "streaming_llm:budget=50%"
    full, half = measured(loaded, task, sample, [spec], "query-aware")
    prompt, model = read(loaded, sample.text, list(sample.images)), loaded.model
    says = loaded.tokenizer.decode(answer_ids(loaded, prompt, sample)[:1])
    blank = " " if says.startswith(" ") else ""
    told = loaded.tokenizer(f"{blank}a red cat sat", add_special_tokens=False)["input_ids"]
    assert full["reference_tokens"] == half["reference_tokens"] == len(told) > 1
    nlls = []
    for policy in ("full", spec):
        with foveate.compress(model, policy) as session, torch.no_grad():
            logits = [model(**prompt.inputs, use_cache=True).logits[0, -1]]
            for token in told[:-1]:
                out = model(input_ids=torch.tensor([[token]]), **{CACHE: session.cache})
                logits.append(out.logits[0, -1])
        each = [-float(x.log_softmax(-1)[t]) for x, t in zip(logits, told, strict=True)]
        nlls.append(sum(each) / len(each))
    assert [full["reference_nll"], half["reference_nll"]] == pytest.approx(nlls, rel=1e-4)
    assert nlls[0] != pytest.approx(nlls[1], rel=1e-4)
    assert full["rouge_full"] == 1.0
    assert 0 <= half["rouge_full"] <= 1
    assert perplexity([full]) == pytest.approx(math.exp(nlls[0]), rel=1e-4)
    assert perplexity([{"score": 1}]) is None
    (without,) = measured(loaded, TASK, sample, [], "query-aware")
    assert (without["reference_nll"], without["reference_tokens"]) == (None, 0)
    assert without["prediction"] == full["prediction"]


def test_images_stand_where_the_text_has_places_for_them(loaded: Loaded) -> None:
    (drawn,) = samples(1)
    a, b, c = drawn.images
    prompt = read(loaded, f"First {PLACE} then {PLACE}{PLACE} end", [a, b, c])
    text = "".join(
        loaded.tokenizer.decode([i])
        for i, seen in zip(
            prompt.inputs["input_ids"][0].tolist(), prompt.vision.tolist(), strict=True
        )
        if not seen
    )
    changes = prompt.vision.int().diff().ne(0).sum()
    assert changes == 4  # text, image, text, two images, text
    assert "First" in text
    with pytest.raises(InvalidInput, match=r"2 .* placeholder"):
        read(loaded, f"{PLACE} {PLACE}", [a])


def test_a_long_text_loses_its_middle(loaded: Loaded) -> None:
    text = " ".join(f"word{i}" for i in range(60))
    ids = loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    short = without_middle(loaded.tokenizer, text, (), (), 20)
    decode = loaded.tokenizer.decode
    assert short == (decode(ids[:10]) + decode(ids[-10:]), ())
    assert without_middle(loaded.tokenizer, text, (), (), 21) == short  # an odd one is given up
    assert without_middle(loaded.tokenizer, text, (), (), len(ids)) == (text, ())
    asked = Sample("0", "Who?", ("x",), context=text)
    rows = [
        next(iter(measured(loaded, TASK, asked, [], "query-agnostic", longest_prompt=most)))
        for most in (None, 40)
    ]
    assert rows[1]["tokens"] < rows[0]["tokens"]


def test_images_count_as_their_tokens_and_go_with_the_middle(loaded: Loaded) -> None:
    """A letter is a token of this model, and an image nine."""
    (drawn,) = samples(1)
    a, b, c = drawn.images
    text = f"{PLACE}abcd{PLACE}efgh{PLACE}ijkl"
    for most, kept, images in (
        (39, text, (a, b, c)),
        (38, f"{PLACE}abcdefgh{PLACE}ijkl", (a, c)),  # 19 on either side: 9 + 4; 4 + 9 + 4
        (20, f"{PLACE}aijkl", (a,)),
        (16, "ijkl", ()),
    ):
        assert without_middle(loaded.tokenizer, text, (a, b, c), (9, 9, 9), most) == (kept, images)
    # where the text says nothing of them, they stand before it
    assert without_middle(loaded.tokenizer, "abcd", (a, b), (9, 9), 20) == (
        f"{PLACE}abcd",
        (a,),
    )
    asked = replace(drawn, context="x" * 40 + PLACE * 3, between="\n")
    tokens = []
    for most in (None, 60, 50):
        (row,) = measured(loaded, TASK, asked, [], "query-aware", longest_prompt=most)
        tokens.append((row["visual_tokens"], len(row["image_sizes"])))
    assert tokens[0] == (27, 3)
    assert tokens[1][0] == 9 * tokens[1][1] < 27


def test_an_answer_that_is_not_divisible_has_no_score_after_the_first_token(
    loaded: Loaded,
) -> None:
    (drawn,) = samples(1)
    (row,) = measured(loaded, TASK, drawn, [], "query-aware")
    sample = replace(drawn, answers=(row["prediction"],), facts={"choices": (row["prediction"],)})
    whole = replace(TASK, metric=choice, divisible=False)
    (row,) = measured(loaded, whole, sample, [], "query-aware")
    assert row["score_after_first"] is None


def test_without_a_question_after_the_context_nothing_is_query_agnostic(loaded: Loaded) -> None:
    (drawn,) = samples(1)
    asked = replace(drawn, context=f"Who is on {PLACE}{PLACE}{PLACE}", question="", between="")
    rows = list(measured(loaded, TASK, asked, ["knorm:budget=50%"], "query-agnostic"))
    assert [row["spec"] for row in rows] == [FULL, "knorm:budget=50%"]
    for row in rows:
        assert row["error"]["type"] == "InvalidInput"
        assert "no question after" in row["error"]["message"]
