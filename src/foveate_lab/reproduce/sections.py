"""The sections of the five papers in which their tables and figures stand, in the papers' order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

Sections = Mapping[str, tuple[str, ...]]
"""By the heading, the experiments without the name of the paper."""

SECTIONS: Mapping[str, Sections] = {
    "mixkv": {
        "Abstract": ("text-gain",),
        "1 Introduction": ("fig1a", "fig1b", "fig2"),
        "3.3 Head-wise adaptive mixing mechanism": ("fig3",),
        "4.2 Main results": ("table1", "table2", "table3"),
        "4.3 Ablation studies and analysis": (
            "table4-importance",
            "table4-mixing",
            "text-weights-cost",
            "fig4",
        ),
        "A.2 More discussions on redundancy differences": ("fig5",),
        "A.4 Additional experiments": ("table5-longbench", "table5-loogle", "table6", "table7"),
        "A.5 More efficiency analysis": ("fig6",),
        "More views of the keys": ("fig7",),
    },
    "prefixkv": {
        "3.2 Layer-wise KV cache importance distribution": ("fig2",),
        "4.2 Main results": ("table1", "table2"),
        "4.3 Model analyses": (
            "table3",
            "table4",
            "table5",
            "fig4",
            "table6",
            "table7",
            "table8",
            "table9",
            "table10",
            "table11",
            "table12",
            "fig5",
            "table13",
            "table14-longbench",
            "table14-needle",
            "table15",
            "text-kivi-combo",
        ),
        "B More model analyses": ("table16", "table17", "fig6"),
    },
    "csp": {
        "1 Introduction": ("fig1a", "fig1b", "fig1c"),
        "3.2 Cross-self pruning": ("fig3",),
        "4.4 Main results": ("table1-7b", "table1-13b"),
        "5.1 Influence of the hyper-parameters": ("fig4",),
        "5.2 Efficiency analysis": ("table2",),
        "5.3 Influence of n-softmax": ("fig5",),
        "5.4 Impact of cache budget": ("fig6",),
        "5.5 Influence of model architectures": ("table3-internvl", "table3-mobilevlm"),
        "Appendix: distributions of the modalities": ("fig7", "fig8"),
    },
    "david": {
        "Motivation": ("fig1b", "fig1c"),
        "Main results": ("table1", "table2", "table3"),
        "Ablation results": ("table4",),
        "Impact across different budgets": ("fig3",),
        "Efficiency analysis": ("table5",),
        "Compatibility with text-only eviction": ("table6",),
        "Another model": ("table7",),
    },
    "lookm": {
        "1 Introduction": ("fig2",),
        "5.1 Main results on MileBench": ("table1-7b", "table1-13b"),
        "5.2 Performance on different architectures": ("table2", "table3"),
        "5.3 Influence of various cache budgets": ("fig5",),
        "5.4 Hyperparameter analysis": ("fig6",),
        "5.5 Efficiency analysis": ("table4",),
        "A.2 Performance under extreme compression": ("table6",),
        "A.3 Full results for InternVL and MobileVLM": ("table7-mobilevlm", "table7-internvl"),
        "A.4 With and without text prior": ("table8",),
    },
}


def in_order(ids: Iterable[str]) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Paper by paper, those of these experiments that each section has."""
    wanted = {*ids}
    for paper, sections in SECTIONS.items():
        ordered = {
            heading: [f"{paper}:{name}" for name in names if f"{paper}:{name}" in wanted]
            for heading, names in sections.items()
        }
        held = {heading: mine for heading, mine in ordered.items() if mine}
        if held:
            yield paper, held
