"""The table of defaults.md: what every method does unless it is told otherwise, and who says so."""

from __future__ import annotations

from inspect import Parameter

import foveate
from foveate.core.method import Method
from foveate.core.spec import print_value

# What `pool` can be, for methods that pool and do not let choose.
POOLS = {"david": "max", "non_causal_attention": "avg", "rkv": "max"}
SHOWN_APART = ("budget", "window", "kernel", "pool")

# "Release": the authors' code. "kvpress": NVIDIA's, where that is the authors' own code, or where
# theirs was never released. "Here": nobody says it, and it was chosen for this library.
FROM = {
    "mixkv": "window: section 3.2; kernel, pooling and what is normalised: the release",
    "prefixkv": "release; section 3.3 gives no tolerance, the release stops within 5 tokens",
    "csp": "`n`: section 3.3; `cross_ratio`, `bias`: Appendix A; `recent`: the release's "
    "`hh_ratio=0.1, recent_ratio=0.1`, which also joins the lists (`combine=concat,fill=false`); "
    "eqs. 2 to 4 are `combine=and,fill=false,head_mean=true`",
    "david": "`threshold`, `rho` (1; 2 for OCRBench and MM-Vet): Implementation Details; no code, "
    "and no window or kernel in the paper: half of the budget, and SnapKV's kernel",
    "lookm": "`recent`: alpha1 = alpha2 of Table 1; `merging`, `text_prior`: section 5.2",
    "adakv": "release; `floor`: its scripts for grouped queries (0.5 in a snippet of its README); "
    "`normalised`: off in its command line, on in the ports of MixKV, SparseMM and "
    "KVCache-Factory",
    "aircache": "paper; `recent`: here, the last token",
    "bacon": "release, before it was withdrawn",
    "cam": "`recent`: the release's `start_ratio` = `recent_ratio`; `into`: kvpress",
    "chunkkv": "`length`: the paper (kvpress: 20); window: SnapKV's; the paper does not pool",
    "compactor": "kvpress; the authors' own engine blends by 0.5",
    "criticalkv": "release; its SnapKV has this window and kernel",
    "cur": "kvpress",
    "divprune": "no parameter in the paper; `sinks`: here, for text that does not fit",
    "duo_attention": "here: a quarter of the budget, and StreamingLLM's sinks; the release trains "
    "with 128 and 256 tokens and answers with 64 and 256, which many budgets do not hold",
    "elastic_cache": "release",
    "expected_attention": "kvpress; `window`: here, it keeps its queries in a profile instead",
    "fastv": "K = 2: the paper; `by`: the release; `least`, `recent`: here",
    "finch": "window: the question's length, which a prompt has to tell; the rest: kvpress",
    "full": "",
    "h2o": "half of the budget each: the paper, and the release's 1024 and 1024 tokens",
    "headkv": "release; it tries `beta` from 1.005 to 10 (1.5 where none is said), of which "
    "KVCache-Factory's port takes 1.01",
    "infinipotv": "release; `every`: here",
    "keydiff": "no parameter in the paper",
    "keyformer": "`recent`: 30 %, release; `tau`: its first value, which it raises to 2 while "
    "decoding (`tau_step`)",
    "kivi": "release; 2 bits: the paper's main setting",
    "knorm": "no parameter in the paper; the release leaves layers 0 and 1 whole",
    "kvzip": "`chunk`: 2,000 tokens in the release; `sinks`: here (there the system prompt, in "
    "kvpress 4)",
    "lagkv": "kvpress; the release has 16 sinks and parts of 1,024 tokens, its README 64 and 128",
    "leverage": "kvpress",
    "meda": "half of the budget: the release's `hh_ratio` = `recent_ratio`; `entropy`: the release",
    "nacl": "release, as shares of its 20 %: 1 % proxies and recent, 7 of 19 drawn; it has 256 "
    "sinks, which many budgets do not hold",
    "non_causal_attention": "kvpress",
    "pyramiddrop": "paper: four stages, half",
    "pyramidkv": "release (KVCache-Factory)",
    "q_filters": "no parameter in the paper",
    "random": "",
    "recommended": "[which_method.md](which_method.md)",
    "rkv": "README of the release; its class has `mix_lambda` 0.07",
    "roco": "release, while decoding; 0.1 where it reads a prompt",
    "simlayerkv": "`sinks`, `last`: release and kvpress; `recent`: here, the release has 1,024 "
    "tokens, which many budgets do not hold",
    "snapkv": "release, where nothing is set; its LongBench runs set `kernel=7,pool=max`",
    "sparsemm": "release",
    "streaming_llm": "paper and release",
    "tgv_kv": "release",
    "think": "release: SnapKV with its LongBench settings, and 0.4 of the channels",
    "tova": "release: one set for all heads",
    "vl_cache": "paper: 1 % and 10 %",
    "vnorm": "no parameter in the paper",
}


def table() -> str:
    """One row a method."""
    head = "| method | window | kernel, pooling | other defaults | from |"
    rows = [head, "|---|---|---|---|---|"]
    for name, method in foveate.METHODS.items():
        cells = (_window(method), _pooling(method), _others(method), FROM.get(name, ""))
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def _default(method: Method, name: str) -> str:
    """The default as a spec writes it; nothing if there is no such parameter, or no default."""
    parameter = method.parameters.get(name)
    if parameter is None or parameter.default is Parameter.empty:
        return ""
    return print_value(parameter.default)


def _window(method: Method) -> str:
    return _default(method, "window")


def _pooling(method: Method) -> str:
    parts = _default(method, "kernel"), _default(method, "pool") or POOLS.get(method.name, "")
    return ", ".join(part for part in parts if part)


def _others(method: Method) -> str:
    found = [
        f"{name}={_default(method, name)}"
        for name in method.parameters
        if name not in SHOWN_APART and _default(method, name)
    ]
    return f"`{', '.join(found)}`" if found else ""
