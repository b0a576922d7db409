"""A sample's prompt, which is read once for all policies of a kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

from foveate.errors import InvalidInput
from foveate.hf import Recording, record
from foveate.hf.attach.model_policy import divided_for
from foveate.hf.layer.stats import now
from foveate.hf.model.devices import input_device
from foveate.loading.model import Loaded
from foveate.models.token_grids import Box
from foveate.policies.policy import Policy
from foveate.policies.pruning import Prune
from foveate.prompts.evidence import in_text, on_images, tokens_of
from foveate.prompts.prompt import Prompt, read, takes_videos
from foveate.prompts.sample import PLACE, Sample
from foveate_lab.defaults import Protocol
from foveate_lab.eval.answering.shorten import without_middle
from foveate_lab.eval.contenders import is_oracle, resolved
from foveate_lab.eval.conversations import in_conversation
from foveate_lab.eval.pixels import bounded, seen_sizes
from foveate_lab.eval.task_registry import Task

FULL = "full"


class Recorded(NamedTuple):
    """A prompt as it was read, and the seconds that it took."""

    recording: Recording
    seconds: float


@dataclass
class Reading:
    """A sample's prompt, which is read with the full cache, as far as it is compressed, for all
    policies of a kind: once for those that read column sums, and once for the others.

    Adding up sums takes another attention, which rounds differently. So what is read for a policy
    depends on that policy alone, and not on those that it is compared with.

    ``cut`` is the number of tokens that are compressed. ``timed`` decodes every answer token by
    token, on its own. ``conversation`` names the authors' template that words the prompt, "" where
    the model's own does.
    """

    loaded: Loaded
    task: Task
    sample: Sample
    prompt: Prompt
    cut: int
    timed: bool
    conversation: str = ""
    _last: tuple[bool, Prune | None, Recorded] | None = field(default=None, repr=False)

    @property
    def rest(self) -> Tensor:
        """The tokens of the question where it comes after the compression."""
        rest: Tensor = self.prompt.inputs["input_ids"][:, self.cut :]
        return rest

    def recorded(self, *, sums: bool, prune: Prune | None = None) -> Recorded:
        """The prompt, as policies read it that need column sums, or none, and that have all visual
        tokens computed, or not. Only one of these is held at a time: ask for one kind after the
        other.
        """
        if self._last is None or self._last[:2] != (sums, prune):
            self._last = None
            model = self.loaded.model
            start = now(input_device(model))
            recording = record(model, sums=sums, prune=prune, **_until(self.prompt, self.cut))
            self._last = sums, prune, Recorded(recording, now(input_device(model)) - start)
        return self._last[2]

    def policy(self, spec: str) -> Policy:
        """The policy of a contender for this sample; one budget is divided for its prompt.

        Raises:
            InvalidInput: the oracle's, of a sample that does not say what shows the answer.
        """
        policy = resolved(spec, self._evidence() if is_oracle(spec) else ())
        return divided_for(self.loaded.model, policy, [self.cut])

    def _evidence(self) -> list[int]:
        """The tokens that show the answer, of those that are compressed."""
        sample = self.sample
        if not sample.evidence:
            raise InvalidInput(
                f"the samples of {self.task.name} do not say what shows the answer, so there is no "
                "oracle for them. Leave it out."
            )
        spans = tokens_of(self.loaded, self.prompt, sample.images, sample.evidence)
        return [place for where in spans for place in where if place < self.cut]


def read_prompt(
    loaded: Loaded,
    task: Task,
    sample: Sample,
    protocol: Protocol,
    *,
    timed: bool,
    longest_prompt: int | None,
) -> Reading:
    """A sample's prompt, ready to be read.

    Raises:
        InvalidInput: it cannot be worded, or not be cut where its question begins.
    """
    loaded, conversation = asked_in(loaded, task, sample)
    if task.fit:
        sample = task.fit(loaded.tokenizer, sample)
    if longest_prompt:
        sample = _within(loaded, task, sample, longest_prompt)
    prompt = _read(loaded, task, sample)
    cut = prompt.tokens
    if protocol == "query-agnostic":
        cut = _asked_at(loaded, prompt, sample)
    seen: dict[str, Any] = {
        "seen": seen_sizes(prompt.inputs, loaded.model.config),
        "model_type": loaded.model.config.model_type,
    }
    if "box" in sample.facts and sample.images:  # the answer is a place on the image
        seen["view"] = view_of(loaded, prompt, sample.images)
    sample = replace(sample, facts={**sample.facts, **seen})
    return Reading(loaded, task, sample, prompt, cut, timed, conversation)


def asked_in(loaded: Loaded, task: Task, sample: Sample) -> tuple[Loaded, str]:
    """Return the model with the template that words a sample's prompt, and the name of that
    conversation, or "" where it is the model's own template.

    A processor that takes videos words them by its own template, as the authors' conversations have
    no place for them. For others frames are images.
    """
    if sample.plain or (sample.videos and takes_videos(loaded)):
        return loaded, ""
    return in_conversation(loaded, task.conversations)


def _read(loaded: Loaded, task: Task, sample: Sample) -> Prompt:
    images = list(sample.images)
    clips = [video.clip for video in sample.videos]
    if loaded.sees and (images or clips):
        loaded = bounded(loaded, task.pixels)
    return read(loaded, sample.text, images, clips=clips, plain=sample.plain)


def _within(loaded: Loaded, task: Task, sample: Sample, most: int) -> Sample:
    """The sample without its middle where it has more than so many tokens, images counted; what is
    left of the question stays the question. Where images go, so does what says where they show the
    answer.
    """
    costs: list[int] = []
    if sample.videos:
        raise InvalidInput(
            f"sample {sample.name} has a video, of which --longest-prompt cuts nothing. Leave it "
            "out, and take fewer frames: an option of the task says how many."
        )
    if sample.images:
        costs = tokens_of_images(loaded, _read(loaded, task, sample), sample.images)
    text, images = without_middle(loaded.tokenizer, sample.text, sample.images, costs, most)
    if text == sample.text and len(images) == len(sample.images):
        return sample
    question = sample.question if text.endswith(sample.question) else text
    context = text.removesuffix(question)
    evidence = sample.evidence if len(images) == len(sample.images) else ()
    return replace(
        sample, context=context, question=question, between="", images=images, evidence=evidence
    )


def _asked_at(loaded: Loaded, prompt: Prompt, sample: Sample) -> int:
    """The token of the prompt with which the question begins."""
    question = sample.question.strip()
    if not question:
        raise InvalidInput(
            f"sample {sample.name} has no question after its images and context, so it cannot be "
            "asked query-agnostic. Use query-aware."
        )
    if PLACE in question:
        raise InvalidInput(
            f"sample {sample.name} has its image in or after its question, so it cannot be asked "
            "query-agnostic. Use query-aware, or put images first where the task has an option for "
            "that."
        )
    return in_text(loaded, prompt, question, last=True)[0]


def _until(prompt: Prompt, cut: int) -> Mapping[str, Any]:
    """The inputs of the prompt's first tokens: what has a number for every token is cut."""
    if cut == prompt.tokens:
        return prompt.inputs
    return {
        name: value[:, :cut]
        if isinstance(value, Tensor) and value.ndim == 2 and value.shape[1] == prompt.tokens
        else value
        for name, value in prompt.inputs.items()
    }


def view_of(loaded: Loaded, prompt: Prompt, images: Sequence[Image.Image]) -> Box | None:
    """What the model sees of the first image as a whole, in the image's pixels: less where its
    processor crops, more where it pads. None where that is not known.
    """
    try:
        return on_images(loaded, prompt, images)[0].grids[0].on(images[0].size)
    except InvalidInput:
        return None


def tokens_of_images(loaded: Loaded, prompt: Prompt, images: Sequence[Image.Image]) -> list[int]:
    """How many tokens each image of a prompt is; evenly shared out where that is not known."""
    try:
        return [len(one.places) for one in on_images(loaded, prompt, images)]
    except InvalidInput:
        return [-(-prompt.visual_tokens // prompt.images)] * prompt.images
