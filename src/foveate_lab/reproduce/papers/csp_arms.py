"""CSP's lines: its settings by set, as the paper has them and as the release does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from foveate_lab.reproduce.papers.lookm import SETS, tasks_of
from foveate_lab.reproduce.trials import Arm

CSP = "csp:budget={B},recent=0.5,n=1.0"
TOP_K = ",select=top_k(recent=0.5)"
AFTER = ",decode_n=1.0"  # n-softmax in the attention over what is kept
TASKS = {
    name: task
    for column, names in SETS.items()
    for name, task in zip(names, tasks_of(column), strict=True)
}


def _by_set(values: Mapping[str, str]) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Arguments of single sets, of all models."""
    yield from ((TASKS[name], {"": value}) for name, value in values.items())


RETRIEVAL = {"milebench_i1": {"": "cross_ratio=0.9"}}
CROSS = {  # Table 4 (L428-429), section 4.3
    **RETRIEVAL,
    **{task: {"llava-1.5-7b": "cross_ratio=0.1"} for task in tasks_of("T-4")},
    **dict(_by_set({"EgocentricNavigation": "bias=0.5", "SlideVQA": "bias=1.5"})),
}
RELEASED = dict(  # the release's configuration; 0.5 and 1 of all others
    _by_set(
        {
            "ActionPrediction": "cross_ratio=0.0",
            **dict.fromkeys(
                (
                    "ActionLocalization",
                    "ActionSequence",
                    "CLEVR-Change",
                    "CounterfactualInference",
                    "DocVQA",
                    "SceneTransition",
                ),
                "cross_ratio=0.1",
            ),
            **dict.fromkeys(("Spot-the-Diff", "MultiModalQA", "WebQA"), "cross_ratio=0.9"),
            "EgocentricNavigation": "bias=1.5",
            "SlideVQA": "bias=0.5",
        }
    )
)
OURS = Arm(name="CSP", spec=CSP, also=CROSS)
SMOOTHED = Arm(name="CSP, n-softmax while decoding, too", spec=CSP + AFTER, also=CROSS)
READINGS = (
    Arm(name="CSP, eqs. 2 to 4", spec=f"{CSP},combine=and,fill=false,head_mean=true", also=CROSS),
    Arm(name="CSP, as released", spec=f"{CSP},combine=concat,fill=false", also=RELEASED),
)
# Figure 5: one ranking, or two; softmax, n-softmax where it selects, and in the answer as well
SOFTMAX = {
    "softmax": "csp:budget={B},recent=0.5,n=0.0",
    "n-softmax": CSP,
    "n-softmax while decoding, too": CSP + AFTER,
}
SMOOTHING = tuple(
    Arm(name=f"{name}, {softmax}", spec=spec + more)
    for name, more in (("top-k", TOP_K), ("CSP", ""))
    for softmax, spec in SOFTMAX.items()
)
