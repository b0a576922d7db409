"""Shows that the tests would notice: 32 faults, each put into a copy of the source, which the
tests named beside it must then fail.

    python tests/mutations.py                  every fault, one after the other
    python tests/mutations.py NAME ...         these alone; --list says which there are
    python tests/mutations.py --jobs 2         two at a time
    python tests/mutations.py --out FILE.md    the table as Markdown, too
    python tests/mutations.py --repo DIR       the source and the tests of another checkout

A fault counts as caught if a test fails; a source that cannot be imported proves nothing. It exits
with 1 if any fault survives. Tests are named by file or by function, the cheapest first. Whoever
changes a line that a fault changes is told to change the table as well.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parent.parent
PYTEST = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider")
LONGEST = 300  # seconds until a run that does not end is given up


class Fault(NamedTuple):
    """In ``file`` of the package, ``old`` (which stands there once) becomes ``new``."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


class Outcome(NamedTuple):
    """The first test that failed; or None, and why."""

    fault: Fault
    test: str | None
    why: str
    seconds: float


# fmt: off
FAULTS = (
    # What the cache tells the model
    Fault("positions go on from what is kept", "hf/layer/cache_layer.py",
          "        return self.seen\n\n    def get_mask_sizes",
          "        return self.pairs.longest if self.seen else 0\n\n    def get_mask_sizes",
          ("tests/conformance/test_prompts.py", "tests/conformance/test_families.py")),
    Fault("rotary offsets stay those of the latest prompt", "hf/layer/hooks.py",
          "        if name in state.tokens.extras:\n",
          "        if name not in state.tokens.extras:\n",
          ("tests/conformance/test_modes.py::"
           "test_a_context_keeps_its_own_positions_when_another_is_read_in_between",)),
    Fault("later tokens see the empty slots of shorter heads", "hf/attention/masks.py",
          "return visible.gather(3, index) & occupied",
          "return visible.gather(3, index)",
          ("tests/conformance/test_modes.py::"
           "test_prompt_lookup_decoding_gives_what_plain_decoding_gives",)),
    Fault("a wrapper stays on the model", "hf/layer/hooks.py",
          "    undo.callback(back)\n",
          "",
          ("tests/backends/test_attaching.py",)),
    # What is remembered, and for how long
    Fault("images are those of the first pass", "hf/layer/state.py",
          "if cached is None or cached[0] is not tokens.vision:",
          "if cached is None:",
          ("tests/backends/test_what_is_seen.py::"
           "test_an_image_that_comes_in_two_passes_is_one_image",)),
    Fault("what one window is found to be is every window", "cache/slots.py",
          "if known is rule and known_arguments == arguments and their_types == types:",
          "if known is rule:",
          ("tests/core/test_slots.py",)),
    Fault("a chunk's queries are forgotten by the next", "compression/reading.py",
          "query_count if goes_on else 0",
          "query_count if goes_on and rule.decodes else 0",
          ("tests/core/test_reading.py",)),
    Fault("a second turn is kept whole", "hf/attach/session.py",
          "(self.cache if cache is None else cache).update_turn(awaiting=True)",
          "(self.cache if cache is None else cache).update_turn(awaiting=False)",
          ("tests/conformance/test_modes.py::test_second_turn_with_a_new_image",)),
    Fault("a branch shares the recording's pairs", "hf/measuring/record.py",
          "layer.refill(source.pairs.fork(), source.seen, source.seen)",
          "layer.refill(source.pairs, source.seen, source.seen)",
          ("tests/backends/test_recording.py::"
           "test_branches_leave_the_recording_and_each_other_alone",)),
    # What is never computed
    Fault("tokens that are computed are numbered anew", "hf/model/token_selection.py",
          "        return _along(value, order, value.ndim - 1)\n    if value.ndim > 1",
          "        return value[..., : order.shape[1]]\n    if value.ndim > 1",
          ("tests/pruning/test_oracle.py::"
           "test_pruned_equals_the_stock_model_with_the_dropped_hidden",)),
    # Pairs as they are held
    Fault("values do not follow the batch's rows", "cache/pairs/dense.py",
          "self._k.index_select(0, rows), self._v.index_select(0, rows)",
          "self._k.index_select(0, rows), self._v.index_select(0, rows.sort().values)",
          ("tests/core/test_storage.py",)),
    Fault("a saved context forgets its columns", "cache/pairs/ragged.py",
          'DensePairs(tensors["k"], tensors["v"], tensors.get("columns"), first)',
          'DensePairs(tensors["k"], tensors["v"], None, first)',
          ("tests/conformance/test_modes.py::"
           "test_a_saved_context_is_read_by_another_process",)),
    Fault("listed columns are not counted as bytes", "cache/pairs/dense.py",
          "return self._k.nbytes + self._v.nbytes + listed",
          "return self._k.nbytes + self._v.nbytes",
          ("tests/core/test_storage.py",)),
    Fault("codes are read back a step too high", "ops/affine_codes.py",
          "least.float() + numbers.float() * step.float()",
          "least.float() + (numbers.float() + 1) * step.float()",
          ("tests/stages/test_store.py",)),
    # Attention and scores
    Fault("query heads pay to the wrong KV head", "ops/column_sums.py",
          "grouped = q.reshape(b, h, hq // h, m, d)",
          "grouped = q.reshape(b, hq // h, h, m, d).transpose(1, 2)",
          ("tests/ops/test_column_sums.py",)),
    Fault("decoding reads the values one pair early", "ops/kernels/ragged_decode.py",
          "v[0] + start * v[1]", "v[0] + tl.maximum(start - 1, 0) * v[1]",
          ("tests/ops/kernels/test_ragged_decode.py",)),
    Fault("a softmax-n is a softmax", "ops/softmax_n.py",
          "return weights * share(logits.float().logsumexp(-1, keepdim=True), n) if n else weights",
          "return weights",
          ("tests/ops/test_softmax_n.py",)),
    Fault("the first query of the window is left out", "stages/score/window.py",
          "slots.q_pos[:, -w:] >= (slots.lengths - sizes)",
          "slots.q_pos[:, -w:] > (slots.lengths - sizes)",
          ("tests/stages/test_scores.py",)),
    Fault("padding is scored", "compression/pipeline.py",
          "values = raw if slots.all_valid else raw.masked_fill(~slots.valid, -torch.inf)",
          "values = raw",
          ("tests/methods/test_padding.py", "tests/core/test_compress_tensors.py")),
    Fault("pivotal merging takes the whole of a pair", "stages/merge.py",
          "total.add_(portion.copy_(own).mul_(n)).div_(2)",
          "total.add_(portion.copy_(own).mul_(n))",
          ("tests/stages/test_merge.py",)),
    # How much is kept, and where
    Fault("a share of the prompt is rounded in floating point", "policies/amount.py",
          "length * self.value.numerator // self.value.denominator",
          "int(length * float(self.value))",
          ("tests/core/test_amount.py",)),
    Fault("the first token is no sink", "stages/select.py",
          "(pos >= 0) & (pos < self.sinks)",
          "(pos > 0) & (pos < self.sinks)",
          ("tests/stages/test_select.py",)),
    Fault("a budget of all layers is given to each", "compression/reading.py",
          'if policy.scope == "model":',
          'if policy.scope == "no":',
          ("tests/methods/test_prefixkv.py",)),
    # Methods
    Fault("PrefixKV searches on the wrong side", "methods/prefixkv.py",
          "low, high = (p, high) if difference < 0 else (low, p)",
          "low, high = (p, high) if difference > 0 else (low, p)",
          ("tests/methods/test_prefixkv.py",)),
    Fault("MixKV prefers what is alike", "methods/mixkv.py",
          "return importance.lerp(div, r)",
          "return importance.lerp(-div, r)",
          ("tests/methods/test_mixkv.py",)),
    Fault("CSP takes one list for the other", "methods/csp.py",
          'parts={"self": own, "cross": cross}',
          'parts={"self": cross, "cross": own}',
          ("tests/methods/test_csp.py",)),
    Fault("DAVID stops where it should go on", "methods/david.py",
          '"delta_below": delta < self.threshold',
          '"delta_below": delta > self.threshold',
          ("tests/methods/test_david.py",)),
    Fault("LOOK-M ranks text like images", "stages/score/wrappers.py",
          "torch.where(layer.vision, values, values + prior)",
          "values + 0 * prior",
          ("tests/methods/test_lookm.py",)),
    # Around them
    Fault("a similarity of just a half counts for nothing",
          "../foveate_lab/eval/metrics/answers.py",
          "return similarity if similarity >= 0.5 else 0.0",
          "return similarity if similarity > 0.5 else 0.0",
          ("tests/eval/metrics/test_answers.py",)),
    Fault("a prompt cut short is a token longer than it may be",
          "../foveate_lab/eval/answering/shorten.py",
          "half = limit // 2\n",
          "half = limit // 2 + 1\n",
          ("tests/eval/test_measure.py::test_a_long_text_loses_its_middle",)),
    Fault("a picture is lit one token further on", "pictures/kept_picture.py",
          "share[indices]",
          "share.roll(-1)[indices]",
          ("tests/report/test_kept.py",)),
    Fault("vLLM is given back a block that later tokens are in", "vllm/plans/gap.py",
          "return max(0, prompt - self.target(prompt)) // block",
          "return -(-max(0, prompt - self.target(prompt)) // block)",
          ("tests/backends/vllm/test_gap.py",)),
)
# fmt: on


def source_with(fault: Fault, repo: Path, into: Path) -> Path:
    """A copy of the source with the fault in it."""
    source = into / "src"
    shutil.copytree(repo / "src", source, ignore=shutil.ignore_patterns("*.egg-info"))
    file = source / "foveate" / fault.file
    text = file.read_text(encoding="utf-8")
    if (found := text.count(fault.old)) != 1:
        raise LookupError(
            f"the fault {fault.name!r} changes what stands {found} times in {fault.file}, not "
            f"once: update the table in {Path(__file__).name}"
        )
    file.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
        compiled.unlink()
    return source


def python(source: Path, repo: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python on that source, which goes before what is installed."""
    surroundings = {
        **os.environ,
        "PYTHONPATH": str(source),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=repo,
        env=surroundings,
        timeout=LONGEST,
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def check_found(source: Path, repo: Path) -> None:
    """Makes sure that an installed package does not win."""
    code = "import importlib.util as u; print(u.find_spec('foveate').origin)"
    found = python(source, repo, "-c", code).stdout.strip()
    if Path(found) != source / "foveate" / "__init__.py":
        raise SystemExit(f"the tests would import {found} instead of the copy in {source}.")


def tried(fault: Fault, repo: Path) -> Outcome:
    """Runs the fault's tests until one fails."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="foveate-fault-") as folder:
        try:
            source = source_with(fault, repo, Path(folder).resolve())
            check_found(source, repo)
            run = python(source, repo, *PYTEST, *fault.tests)
            test, why = verdict(run.returncode, run.stdout)
        except LookupError as error:
            test, why = None, str(error)
        except subprocess.TimeoutExpired:
            test, why = None, f"no end in {LONGEST} s"
    return Outcome(fault, test, why, time.monotonic() - start)


def verdict(code: int, output: str) -> tuple[str | None, str]:
    """The test that failed, from pytest's exit code and its summary."""
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::.+?)(?: - .*)?$", output, re.MULTILINE)
    if code == 1 and failed:
        return failed[1], ""
    known = {0: "survived", 2: "breaks at import"}
    last = (output.strip() or "no word").splitlines()[-1]
    return None, known.get(code, f"pytest ended with {code}: {last}")


def table(outcomes: Sequence[Outcome]) -> str:
    """In Markdown."""
    rows = [
        f"| {one.fault.name} | {f'`{one.test}`' if one.test else f'**{one.why}**'} "
        f"| {one.seconds:.0f} |"
        for one in outcomes
    ]
    caught = sum(one.test is not None for one in outcomes)
    total = sum(one.seconds for one in outcomes)
    return "\n".join(
        [
            "| Fault | Caught by | Seconds |",
            "| --- | --- | --: |",
            *rows,
            "",
            f"{caught} of {len(outcomes)} caught, in {total:.0f} s.",
        ]
    )


def chosen(names: Sequence[str]) -> list[Fault]:
    """The faults of these names; all if there are none."""
    known = {fault.name: fault for fault in FAULTS}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no such fault: {unknown}. --list names them all.")
    return [known[name] for name in names] or list(FAULTS)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name the faults and end")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table there, too")
    parser.add_argument("--repo", type=Path, default=REPO, help="the checkout to take")
    return parser.parse_args()


def main() -> int:
    """Runs the faults and prints what caught them."""
    given = arguments()
    faults, repo = chosen(given.names), given.repo.resolve()
    if given.list:
        print(*(f"{fault.name}  ({fault.file})" for fault in faults), sep="\n")
        return 0
    outcomes: list[Outcome] = []
    with ThreadPoolExecutor(given.jobs) as pool:
        for one in pool.map(lambda fault: tried(fault, repo), faults):
            print(f"{one.seconds:4.0f} s  {one.fault.name}: {one.test or one.why}", flush=True)
            outcomes.append(one)
    text = table(outcomes)
    print(text.splitlines()[-1])
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")
    return 0 if all(one.test for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
