"""Page of cpu.py's results."""

from __future__ import annotations

from typing import Any

AT_END = "snapkv+prefixkv.budget"
GROUPS = {  # policies by their inputs; target for a group's overhead on the prefill
    "the last 32 queries": (0.02, ("snapkv", "mixkv", "adakv", "david:recent=32")),
    "the last queries, half of the budget": (None, ("david",)),
    "norms": (0.02, ("knorm",)),
    "column sums": (0.15, ("h2o", "lookm:merging=none", "prefixkv", "csp")),
    "column sums, merging": (None, ("lookm", "mixkv+prefixkv+lookm.merge")),
}
WINDOWS = next(iter(GROUPS.values()))[1]
SPECS = tuple(spec for _, group in GROUPS.values() for spec in group)


def page(found: dict[str, Any]) -> str:
    """Return the page in Markdown."""
    rows = {row["method"]: row for row in found["prefill"]}
    apart, (ours, masked) = found["decoding"]["same_bytes"], found["decoding"]["kept_or_masked_s"]
    memory = found["memory"]
    return "\n".join([
        "# On a CPU", "",
        f"SmolLM2-135M-Instruct, float32, {found['threads']} threads of {found['machine']}, torch "
        f"{found['torch']}, transformers {found['transformers']}; {found['tokens']:,} tokens of "
        f"prose, 20% kept; medians of {found['rounds']} rounds. Memory is what is in use above the "
        "model, each prefill in a process of its own in which glibc gives back at once what is "
        f"freed.{later(found)}", "",
        "## Prefill", "",
        "What a policy adds to the stock prefill, the two run in lockstep, half a layer at a time "
        "(the median of each half, added up); then by its stages' own clock. For both alike, glibc "
        "gives no memory back on the way. "
        "Decoding is the time per token over that of a preallocated full cache.", "",
        *overhead(rows, memory["policies"]), "",
        "How far whole prefills can be trusted: the full cache, for which next to nothing is done, "
        f"measured {rows['full']['prefill_ratio'] - 1:+.1%}. The first group once more, in a "
        f"process of its own: {again(found['again'])}.", "",
        "## Beside kvpress", "",
        "Each side against its own stock prefill (SDPA) and full cache; kvpress's prefills follow "
        "each other, in a process that glibc runs as it does by default, and its full cache is the "
        "stock one; ours are in lockstep, and ours is preallocated. KV counts kvpress's lists of "
        f"hidden pairs. Its medians are those of {found['kvpress_rounds']} rounds; its peaks come "
        "before them, one after the other in one process.", "",
        *beside(rows, found["kvpress"], memory["policies"]), "",
        f"The stock prefill alone peaks at {mb(memory['stock'])} MB.", "",
        "## As many pairs, kept or read", "",
        "Time per token with what is kept, over a preallocated full cache that holds as many pairs "
        f"because the prompt was short: snapkv (dense) {apart['snapkv']:.2f}, adakv (ragged) "
        f"{apart['adakv']:.2f}.", "",
        "## Kept, or masked", "",
        f"AdaKV's kept pairs take {1000 * ours:.1f} ms a token; the preallocated full cache with a "
        f"mask over the others takes {1000 * masked:.1f}: {ours / masked:.2f} of it is left.", "",
        "## Layer by layer, or at the end", "", *by_layer(memory), "",
        "## In chunks", "",
        "The same prompt in chunks of 256 tokens: kept whole, compressed when it has been read, "
        "and compressed on the way, so that no layer ever holds more than the budget and two "
        "chunks.", "",
        "| policy | peak memory, MB |", "|---|---|",
        *(f"| `{spec}` | {mb(peak)} |" for spec, peak in memory["chunks"].items()), "",
        "## Rules that go on while decoding", "",
        f"After {found['rules'][0].get('tokens', 1024):,} tokens.", "",
        "| policy | time per token, to the full cache |", "|---|---|",
        *(f"| `{row['method']}` | {row['decode_ratio']:.2f} |" for row in found["rules"][1:]),
        "",
        "## One query's attention", "",
        "Milliseconds in one layer, alone: the stock model's (SDPA with grouped heads) over all "
        f"{found['tokens']:,} pairs and over the {found['tokens'] // 5:,} that are kept; and over "
        "these with the groups folded into the query axis, as it is done here.", "",
        "| shape | type | full, stock | kept, stock | kept, folded | full to folded |",
        "|---|---|---|---|---|---|",
        *map(attention, found["attention"]),
        *(half(found["half"], found["kvpress_rounds"]) if "half" in found else ()),
    ])  # fmt: skip


def half(found: dict[str, Any], rounds: int) -> list[str]:
    """Return rows of decoding steps in bfloat16."""
    return [
        "", "## Decoding in bfloat16", "",
        f"Whole steps, to those of the preallocated full cache, medians of {rounds} rounds; of the "
        "larger model two layers and its head.", "",
        "| model | policy | ms/token | to the full cache |", "|---|---|---|---|",
        *(
            f"| {model} | `{spec}` | {of['ms']:.1f} | {of['ratio']:.2f} |"
            for model, rows in found.items() for spec, of in rows.items()
        ),
    ]  # fmt: skip


def later(found: dict[str, Any]) -> str:
    """Describe parts that were measured on another machine or with another transformers."""
    rest = [found["transformers"], found["machine"]]
    others = {part: on for part, on in found["measured_with"].items() if on != rest}
    where = "; ".join(
        f"{', '.join(p for p in others if others[p] == on)}: transformers {on[0]}, {on[1]}"
        for on in sorted({tuple(on): on for on in others.values()}.values())
    )
    return f" Measured elsewhere: {where}." if others else ""


def attention(row: dict[str, Any]) -> str:
    """Return the row of one shape and type."""
    times = " | ".join(f"{row[way]:.2f}" for way in ("full", "kept", "ours"))
    return f"| {row['shape']} | {row['dtype']} | {times} | {row['full'] / row['ours']:.1f} |"


def again(runs: dict[str, Any]) -> str:
    """Describe the overhead of each policy, and its stages' share of the stock prefill."""
    return ", ".join(
        f"`{spec}` {of['ratio'] - 1:+.1%} (stages {of['stages'] / of['alone']:.1%})"
        for spec, of in runs.items()
    )


def overhead(rows: dict[str, Any], peaks: dict[str, int]) -> list[str]:
    """Return a table of every policy's overhead on the prefill, and its peak."""
    lines = ["| reads | policy | prefill | meant | stages alone | peak memory, MB | KV, % of full "
             "| decoding |", "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for group, (target, specs) in GROUPS.items():
        meant = f"<= {target:+.0%}" if target else ""
        for spec in specs:
            row = rows[spec]
            stages = row["compress_s"] / row["prefill_s"] * row["prefill_ratio"]
            lines.append(
                f"| {group} | `{spec}` | {row['prefill_ratio'] - 1:+.1%} | {meant} | {stages:.1%} "
                f"| {mb(peaks[spec])} | {100 * row['kv_share']:.1f} | {row['decode_ratio']:.2f} |"
            )
    return lines


def beside(
    rows: dict[str, Any], peers: list[dict[str, Any]], peaks: dict[str, int]
) -> list[str]:  # fmt: skip
    """Return a table of Foveate and kvpress, each against its own stock prefill and cache."""
    full = rows["full"]["kv_bytes"]
    lines = ["| method | library | prefill | peak memory, MB | KV, % of full | decoding, ms/token "
             "| to the full cache |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for peer in peers:
        ours = {**rows[peer["method"]], "peak_bytes": peaks[peer["method"]]}
        for library, row in (("foveate", ours), ("kvpress", peer)):
            lines.append(
                f"| {peer['method']} | {library} | {row['prefill_ratio']:.2f} | "
                f"{mb(row['peak_bytes'])} | {100 * row['kv_bytes'] / full:.1f} | "
                f"{row['decode_ms_per_token']:.1f} | {row['decode_ratio']:.2f} |"
            )
    return lines


def by_layer(memory: dict[str, Any]) -> list[str]:
    """Describe the peaks of compressing each layer at once, and all layers at the end."""
    early, late = memory["policies"]["snapkv"], memory["policies"][AT_END]
    model = memory["no_cache"]
    return [
        "snapkv compresses each layer as soon as it has been read; with a budget that is shared "
        f"over the layers ({AT_END}) all of them at the end. The prefills peak at {mb(early)} and "
        f"{mb(late)} MB: {early / late:.2f}. The model takes {mb(model)} MB of both for what it "
        "computes, whether or not there is a cache; caches and policies add "
        f"{mb(early - model)} and {mb(late - model)} MB to that: "
        f"{(early - model) / (late - model):.2f}."
    ]


def mb(count: int) -> str:
    """Format bytes as megabytes."""
    return f"{count / 1e6:.0f}"
