"""Hours, memory and downloads of a plan, predicted before its first row exists.

Reading a prompt is taken to be bound by arithmetic, and a step of decoding by the bandwidth of the
memory, or by the time in which Python launches the kernels of a layer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from foveate.compression.composition import policy as policy_of
from foveate.errors import FoveateError, InvalidInput, suggest
from foveate.hf.layer.support import text_config
from foveate.loading.model import is_shipped
from foveate.memory.model import bare, weights
from foveate_lab.eval.answering.reading import FULL
from foveate_lab.eval.tasks import find_sources
from foveate_lab.reproduce.calibrations import CalibrationRun
from foveate_lab.reproduce.models import Place
from foveate_lab.reproduce.resources import toml
from foveate_lab.reproduce.running.lab import Lab
from foveate_lab.reproduce.running.progress import Step
from foveate_lab.reproduce.setting import Setting, folder_of
from foveate_lab.reproduce.stand_in_sizes import ANSWER
from foveate_lab.reproduce.task_request import TaskRequest
from foveate_lab.reproduce.trials.answers import missing

HALF = 2  # bytes of a number in bfloat16
COPIES = 3  # of a prompt's cache: as it was read, as a policy has it, and a branch of that
RESERVE = 2.0  # GB of the driver, of kernels' workspaces and of fragments

Range = tuple[float, float]
"""Low and high end."""


@dataclass(frozen=True)
class Hardware:
    """A device, and the shares of its peaks that are reached.

    Attributes:
        tflops: peak of products in bfloat16.
        bandwidth: of its memory, in GB/s.
        memory: in GB.
        prefill: share of the peak that reading a prompt reaches, from the better to the worse.
        decode: the same of the bandwidth in a step of decoding.
        layer_ms: time to launch the kernels of one layer of a step.
    """

    tflops: float
    bandwidth: float
    memory: float
    prefill: Range = (0.6, 0.3)
    decode: Range = (0.8, 0.3)
    layer_ms: Range = (0.3, 0.9)

    def step(self, size: ModelSize, cache: float) -> Range:
        """Return the seconds of a step of decoding beside ``cache`` bytes of keys and values."""
        moved = HALF * 1e9 * size.active + cache
        low, high = (
            max(moved / (self.bandwidth * 1e9 * share), size.layers * milliseconds / 1000)
            for share, milliseconds in zip(self.decode, self.layer_ms, strict=True)
        )
        return low, high


@dataclass(frozen=True)
class ModelSize:
    """A model as far as time and memory follow from it; ``weights`` and ``active`` in billions.
    ``pair`` are the numbers of a token's key and value in a layer, ``image`` the tokens of one.
    """

    weights: float
    active: float
    layers: int
    width: int
    pair: int
    image: int

    def prefill_flops(self, tokens: float) -> float:
        """Return the operations of reading a prompt, with causal attention."""
        return 2e9 * self.active * tokens + 2.0 * self.layers * self.width * tokens**2

    def cache(self, tokens: float) -> float:
        """Return the bytes of a full cache."""
        return float(HALF * self.layers * self.pair * tokens)


class SampleLengths(NamedTuple):
    """Tokens of a prompt, of an answer, and of a reference whose likelihood is measured."""

    prompt: float
    answer: float
    reference: float


class Work(NamedTuple):
    """Work for one request: tokens of prompts, operations on tokens that are read at once and on
    tokens that are decoded, and steps of decoding.
    """

    tokens: float
    reading: float
    decoding: float
    steps: float

    def seconds(self, hardware: Hardware, size: ModelSize, lengths: SampleLengths) -> Range:
        """Return the seconds on one device, the low and the high end."""
        steps = hardware.step(size, size.cache(lengths.prompt + lengths.answer))
        low, high = (
            self.reading / (hardware.tflops * 1e12 * share) + self.steps * step
            for share, step in zip(hardware.prefill, steps, strict=True)
        )
        return low, high


def work(
    size: ModelSize, lengths: SampleLengths, specs: Sequence[str], samples: int, batch: int
) -> Work:
    """Return what it takes to ask ``samples`` prompts under the full cache and these specs.

    Each prompt is read once, and once more where some policy needs column sums. Every policy
    generates an answer, and passes over the full cache's answer and over a reference: at once, or
    token by token where it compresses while decoding.
    """
    policies = [_traits(spec) for spec in dict.fromkeys((FULL, *specs))]
    reads = 1 + any(sums for sums, _ in policies)
    compared = lengths.answer + lengths.reference
    steps = sum(
        lengths.answer + compared
        if decodes
        else lengths.answer / batch + 1 + (lengths.reference > 0)
        for _, decodes in policies
    )
    at_once = sum(not decodes for _, decodes in policies) * compared
    decoded = len(policies) * (lengths.answer + compared) - at_once
    per_token = 2e9 * size.active
    return Work(
        samples * reads * lengths.prompt,
        samples * (reads * size.prefill_flops(lengths.prompt) + per_token * at_once),
        samples * per_token * decoded,
        samples * steps,
    )


def _traits(spec: str) -> tuple[bool, bool]:
    """Return whether a policy needs column sums, and whether it compresses while decoding."""
    plain = re.sub(r",?profile='[^']*'", "", spec).replace(":,", ":").replace("(,", "(")
    try:
        policy = policy_of(plain)
    except FoveateError:  # it needs a profile that does not exist yet: assume the costlier case
        return True, True
    return policy.reads_column_sums, policy.when.decodes


def hardware_of(name: str) -> Hardware:
    """Return the GPU of that name.

    Raises:
        InvalidInput: the table has none of that name.
    """
    gpus = toml("hardware")["gpus"]
    if name not in gpus:
        raise InvalidInput(f"--gpu {name!r} is unknown. {suggest(name, gpus)}")
    tflops, bandwidth, memory = (
        float(gpus[name][key]) for key in ("tflops", "bandwidth", "memory")
    )
    return Hardware(tflops, bandwidth, memory)


def size_of(model: str, location: str) -> ModelSize | None:
    """Return the size of a model: of one that comes with Foveate from its configuration, of a
    paper's from the table; None if neither knows it.
    """
    if is_shipped(location):
        outline = bare(location)
        config: Any = text_config(outline.model)
        heads = config.num_attention_heads
        head = getattr(config, "head_dim", None) or config.hidden_size // heads
        embeddings: Any = outline.model.get_input_embeddings()
        numbers = weights(outline).parameters / 1e9
        active = numbers - embeddings.weight.numel() / 1e9  # looked up, not multiplied
        pair = 2 * config.num_key_value_heads * head
        return ModelSize(numbers, active, config.num_hidden_layers, heads * head, pair, 0)
    known = toml("hardware")["models"].get(model)
    if known is None:
        return None
    layers, width, pair, image = (int(known[key]) for key in ("layers", "width", "pair", "image"))
    return ModelSize(float(known["weights"]), float(known["active"]), layers, width, pair, image)


def lengths_of(task: str, size: ModelSize, longest_prompt: int | None, cut: bool) -> SampleLengths:
    """Return the expected lengths. ``longest_prompt`` bounds the prompt; ``cut`` is for a
    stand-in.
    """
    data = toml("hardware")["data"][folder_of(task)]
    expected = data["text"] + data["images"] * size.image
    answer, reference = (min(data[name], ANSWER) if cut else data[name] for name in _GENERATED)
    return SampleLengths(
        min(bound for bound in (expected, longest_prompt, data["most"]) if bound), answer, reference
    )


_GENERATED = ("answer", "reference")


def samples_of(task: str) -> int:
    """Return the published number of samples of a benchmark, summed over the sets it reads."""
    sizes, usual = toml("sizes"), toml("hardware")["data"][folder_of(task)]["samples"]
    names = [name or task.partition("(")[0] for name in find_sources(task)]
    return sum(sizes.get(name, (usual,))[0] for name in names)


class ModelEstimate(NamedTuple):
    """Prediction for what is left of one model.

    Attributes:
        model: the paper's name of it.
        tokens: of all prompts, each as often as it is read.
        flops: of prompts, answers and profiles.
        seconds: on all GPUs, the low and the high end.
        memory: GB of one model with its longest prompt.
        weights: GB to download; 0 for a model that comes with Foveate.
        data: GB to download, by folder of the data.
    """

    model: str
    tokens: float
    flops: float
    seconds: Range
    memory: float
    weights: float
    data: dict[str, float]


@dataclass
class Predicted:
    """The prediction for one model of a lab; ``length`` gives the tokens of an ask's prompts, where
    its data or rows are there.
    """

    lab: Lab
    location: Place
    steps: Sequence[Step]
    hardware: Hardware
    gpus: int
    length: Callable[[Setting, TaskRequest], float | None]

    @cached_property
    def _setting(self) -> Setting:
        return self.lab.each(self.steps[0])[0]

    def estimate(self) -> ModelEstimate | None:
        """Return the prediction; None where nothing is known of the model."""
        model = self._setting.model
        size = size_of(model, self.location.at)
        if size is None:
            return None
        parts = list(self._parts(size))
        memory = max(
            (_memory(size, lengths, self.lab.part.batch) for _, lengths, _ in parts), default=0.0
        )
        models = max(1, self.gpus // max(1, math.ceil(memory / self.hardware.memory)))
        low = high = 0.0
        for done, lengths, alone in parts:
            ends = done.seconds(self.hardware, size, lengths)
            low, high = (
                total + end / (1 if alone else models)
                for total, end in zip((low, high), ends, strict=True)
            )
        folders = dict.fromkeys(
            folder_of(task) for step in self.steps for task in step.experiment.trial.tasks()
        )
        gb = toml("hardware")["data"]
        return ModelEstimate(
            self.location.at if is_shipped(self.location.at) else model,
            sum(done.tokens for done, _, _ in parts),
            sum(done.reading + done.decoding for done, _, _ in parts),
            (low, high),
            memory,
            0.0 if is_shipped(self.location.at) else HALF * size.weights,
            {} if self.lab.small else {folder: gb[folder]["gb"] for folder in folders},
        )

    def _parts(self, size: ModelSize) -> Iterator[tuple[Work, SampleLengths, bool]]:
        """Yield the work of each request and profile, and whether one process does it alone."""
        part = self.lab.part
        for request, specs in self.lab.requests(self.steps).items():
            lengths = lengths_of(request.task, size, request.longest_prompt, self.lab.small)
            if (known := self.length(self._setting, request)) is not None:
                lengths = lengths._replace(prompt=known)
            if self._setting.names(request):
                keys = missing(self._setting, request, specs)
                left, count = {spec for *_, spec in keys}, len({name for _, name, _ in keys})
            else:
                left = {*specs}
                count = math.ceil(min(request.samples, samples_of(request.task)) / part.of)
            if left and count:
                batch = 1 if request.timed else part.batch
                yield work(size, lengths, sorted(left), count, batch), lengths, request.timed
        for run in self._profiles().values():
            lengths = lengths_of(run.task, size, run.longest_prompt, self.lab.small)
            flops = run.samples * size.prefill_flops(lengths.prompt)
            yield Work(run.samples * lengths.prompt, flops, 0.0, 0.0), lengths, True

    def _profiles(self) -> dict[str, CalibrationRun]:
        """Return the profiles that are measured on a benchmark's prompts."""
        return {
            name: run
            for step in self.steps
            for name, run in step.experiment.calibrations.items()
            if isinstance(run, CalibrationRun) and run.task
        }


def _memory(size: ModelSize, lengths: SampleLengths, batch: int) -> float:
    """Return the GB of weights, caches and activations; of the latter ten numbers a channel."""
    tokens = lengths.prompt + lengths.answer
    caches = COPIES * size.cache(tokens) * batch
    activations = 10 * HALF * size.width * lengths.prompt
    return HALF * size.weights + (caches + activations) / 1e9 + RESERVE
