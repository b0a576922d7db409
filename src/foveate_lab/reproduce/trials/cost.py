"""Time and memory of policies: on a prompt of some length, and in batches at full load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from foveate.compression.composition import policy as policy_of
from foveate.policies.policy import Policy
from foveate_lab.bench import bench, of_model
from foveate_lab.bench.subject import Subject, with_ids_in_order
from foveate_lab.bench.timing import Tick, prefill, prefills, seconds, steps
from foveate_lab.eval.keyed_rows import Key
from foveate_lab.report.analyses import Figure
from foveate_lab.reproduce import stand_in_sizes as sizes
from foveate_lab.reproduce.experiment import Trial
from foveate_lab.reproduce.setting import Setting
from foveate_lab.reproduce.tables.plots import Plot, plot_table
from foveate_lab.reproduce.tables.printed import BLANK, printed
from foveate_lab.reproduce.tables.table import (
    BUDGETS_LAST,
    MEMBERS_ACROSS,
    OOM,
    Row,
    Table,
    TableCell,
    TableLine,
)
from foveate_lab.reproduce.trials.arms import Arm

SMALL = (
    f"stand-in: prompts of {sizes.PROMPT} tokens, {sizes.STEPS} new ones, batches of {sizes.BATCH}"
)

COLUMNS = ("s", "tokens/s")  # columns of a ThroughputTrial


@dataclass(frozen=True, kw_only=True)
class CostTrial(Trial):
    """Policies at budgets whose time and memory are measured. All rows are of part 1, as other
    machines take other times.
    """

    title: str
    arms: tuple[Arm, ...]
    budgets: tuple[str, ...]

    def specs(self) -> Sequence[str]:
        """Return the compared policies."""
        return [arm.spec for arm in self.arms]

    def profiled(self, setting: Setting) -> Mapping[str, str]:
        """Return the specs of missing rows, with their budgets."""
        lacking = {key[-1] for key in self.measured(setting) if key not in setting.results}
        return {spec: at for spec, at in self._specs(setting).items() if spec in lacking}

    def _specs(self, setting: Setting) -> dict[str, str]:
        return {setting.spec(arm.spec, budget): budget for arm, budget in self._lines()}

    def _lines(self) -> Iterator[tuple[Arm, str]]:
        for arm in self.arms:
            for budget in self.budgets if "{B}" in arm.spec else ("",):
                yield arm, budget


@dataclass(frozen=True, kw_only=True)
class Latency(CostTrial):
    """Total latency and peak memory of one prompt of ``tokens`` and ``new`` more tokens, drawn as
    ``plot`` says. The prompt is token ids in order, as in the script of MixKV's authors.
    """

    tokens: int
    new: int
    rounds: int = 3
    plot: Plot | None = None

    def measured(self, setting: Setting) -> Iterator[Key]:
        """Yield a row of each policy."""
        if setting.part.number == 1:
            yield from ((self._task(setting), "0", spec) for spec in self._specs(setting))

    def run(self, setting: Setting) -> Iterator[dict[str, Any]]:
        """Yield the missing rows, each measured beside the full cache."""
        missing = self.profiled(setting)
        if not missing:
            return
        setting.calibrate(missing)
        tokens, new = self._size(setting)
        policies = [policy_of(spec) for spec in missing]
        for policy in policies:
            policy.check_strictly()
        benched = bench(
            with_ids_in_order(setting.load(), tokens),
            policies,
            rounds=1 if setting.small else self.rounds,
            steps=new,
            memory=0,
            timed=_once if setting.small else prefills,
        )
        measured = dict.fromkeys(policy.spec for policy in (policy_of("full"), *policies))
        by_policy = dict(zip(measured, benched, strict=True))
        for spec, policy in zip(missing, policies, strict=True):
            row = asdict(by_policy[policy.spec])
            yield {"task": self._task(setting), "sample": "0", "spec": spec, "new": new, **row}

    def summarise(self, settings: Sequence[Setting]) -> Iterator[Table | Figure]:
        """Yield seconds in all, and GiB at the peak of the prefill."""
        table = self._table(settings)
        yield table
        if self.plot:
            yield plot_table(self.plot, table)

    def _table(self, settings: Sequence[Setting]) -> Table:
        lines = []
        for setting in settings:
            rows = {
                row["spec"]: row
                for row in setting.results.rows
                if row["task"] == self._task(setting)
            }
            for arm, budget in self._lines():
                row = rows.get(setting.spec(arm.spec, budget))
                cells = tuple(TableCell(value(row) if row else None, None) for _, value in MEASURED)
                specs = ((arm.spec, ""),)
                lines.append(
                    TableLine(
                        setting.model, arm.name, budget, arm.spec, "", cells, arm.over, specs=specs
                    )
                )
        shrunk = [self._shrunk(setting) for setting in settings if setting.small][:1]
        names = tuple(name for name, _ in MEASURED)
        return Table(
            self.title,
            names,
            tuple(lines),
            tuple(shrunk),
            costs=names,
            layout=BUDGETS_LAST,
        )

    def _size(self, setting: Setting) -> tuple[int, int]:
        return (sizes.PROMPT, sizes.STEPS) if setting.small else (self.tokens, self.new)

    def _shrunk(self, setting: Setting) -> str:
        tokens, new = self._size(setting)
        return (
            f"stand-in: {tokens:,} tokens, not {self.tokens:,}; {new} new ones, not {self.new}; "
            f"prefills timed once, not {self.rounds} times after a warm-up"
        )

    def _task(self, setting: Setting) -> str:
        tokens, new = self._size(setting)
        return f"latency, {tokens} ids in order + {new} tokens"


def _once(subject: Subject, policies: Sequence[Policy], rounds: int, tick: Tick) -> Any:
    """Time a stand-in's prefills in the round that otherwise warms up."""
    return prefills(subject, policies, 0, tick)


MEASURED: tuple[tuple[str, Callable[[Row], float | None]], ...] = (
    ("total s", lambda row: row["prefill_s"] + row["new"] * row["decode_ms_per_token"] / 1000),
    ("prefill s", lambda row: row["prefill_s"]),
    ("ms/token", lambda row: row["decode_ms_per_token"]),
    ("peak GiB", lambda row: None if row["peak_bytes"] is None else row["peak_bytes"] / 2**30),
    ("KV GiB", lambda row: row["kv_bytes"] / 2**30),
)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch of ``rows`` prompts of ``tokens``, answered by ``new`` tokens, in one model.

    ``name`` is the paper's name of it.
    """

    name: str
    model: str
    tokens: int
    new: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class ThroughputTrial(CostTrial):
    """Batches at full load, under the full cache and under a policy at several budgets."""

    batches: tuple[Batch, ...]
    figures: str

    def measured(self, setting: Setting) -> Iterator[Key]:
        """Yield a row of each policy and batch."""
        for batch in self._batches(setting) if setting.part.number == 1 else ():
            yield from ((_task(batch), "0", spec) for spec in self._specs(setting))

    def run(self, setting: Setting) -> Iterator[dict[str, Any]]:
        """Yield the missing rows."""
        there = set(self.measured(setting))
        for batch in self._batches(setting):
            specs = self._specs(setting)
            keys = {spec: (_task(batch), "0", spec) for spec in specs}
            missing = [s for s, key in keys.items() if key in there and key not in setting.results]
            if missing:
                setting.calibrate({spec: specs[spec] for spec in missing})
                subject = of_model(setting.load(), batch.tokens)
            for spec in missing:
                loaded = _loaded_fully(subject, spec, batch)
                yield {"task": _task(batch), "sample": "0", "spec": spec, **loaded}

    def summarise(self, settings: Sequence[Setting]) -> Iterator[Table]:
        """Yield seconds of the decoding, and tokens a second over the batch."""
        figures, lines = printed(self.figures), []
        for setting in settings:
            rows = {(row["task"], row["spec"]): row for row in setting.results.rows}
            for batch in self._batches(setting):
                for arm, budget in self._lines():
                    name = f"{batch.name}, {arm.name}"
                    row = rows.get((_task(batch), setting.spec(arm.spec, budget)), {})
                    of_paper = figures.get((setting.model, name, budget), BLANK)
                    cells = tuple(
                        of_paper.cell(key, TableCell(row.get(key), None, row.get("note", "")))
                        for key in COLUMNS
                    )
                    specs = ((arm.spec, ""),)
                    lines.append(
                        TableLine(
                            setting.model,
                            name,
                            budget,
                            arm.spec,
                            of_paper.source,
                            cells,
                            specs=specs,
                        )
                    )
        cut = any(setting.small for setting in settings)
        yield Table(
            self.title,
            COLUMNS,
            tuple(lines),
            (SMALL,) if cut else (),
            costs=COLUMNS,
            layout=MEMBERS_ACROSS,
        )

    def _batches(self, setting: Setting) -> Iterator[Batch]:
        for batch in self.batches:
            if batch.model == setting.model:
                yield _shrunk(batch) if setting.small else batch


def _shrunk(batch: Batch) -> Batch:
    return replace(batch, tokens=sizes.PROMPT, new=sizes.STEPS, rows=sizes.BATCH)


def _task(batch: Batch) -> str:
    return f"throughput, {batch.rows} x {batch.tokens} + {batch.new}"


@torch.no_grad()
def _loaded_fully(subject: Subject, spec: str, batch: Batch) -> dict[str, Any]:
    """Return the seconds of the prefill and of all new tokens, or a note that memory ran out."""
    try:
        filled: list[Any] = []
        first = seconds(lambda: filled.append(prefill(subject, policy_of(spec))), subject.device)
        each = steps(subject, filled[0], batch.new, batch.rows)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return {"note": OOM}
    total = batch.new * each
    return {"prefill_s": first, "s": total, "tokens/s": batch.rows * batch.new / total}
