"""Prefills of a sample's prompt, shared by policies with the same needs."""

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
    """Recorded prefill with its seconds."""

    recording: Recording
    seconds: float


@dataclass
class Reading:
    """Prompt of a sample, prefilled once with the full cache for each kind of policy.

    Policies that read column sums have their own prefill, because summing needs another attention
    that rounds differently. So a policy's prefill does not depend on the policies it is compared
    with.

    ``cut`` is the number of tokens to compress. ``timed`` decodes every answer token by token, on
    its own. ``conversation`` names the authors' template that the prompt has, "" for the model's.
    """

    loaded: Loaded
    task: Task
    sample: Sample
    prompt: Prompt
    cut: int
    timed: bool
    conversation: str = ""
    _last: tuple[bool, Prune | None, bool, Recorded] | None = field(default=None, repr=False)

    @property
    def rest(self) -> Tensor:
        """Tokens of the question, if it comes after the compression."""
        rest: Tensor = self.prompt.inputs["input_ids"][:, self.cut :]
        return rest

    def recorded(self, *, sums: bool, prune: Prune | None = None, hidden: bool = False) -> Recorded:
        """Return the prefill for policies of one kind: by column sums and by pruning.

        Only the last prefill is stored: request one kind after the other. It has the hidden states
        if these were requested.
        """
        last = self._last
        if last is None or last[:2] != (sums, prune) or (hidden and not last[2]):
            self._last, model = None, self.loaded.model
            start, until = now(input_device(model)), _until(self.prompt, self.cut)
            recording = record(model, sums=sums, hidden=hidden, prune=prune, **until)
            recorded = Recorded(recording, now(input_device(model)) - start)
            self._last = last = sums, prune, hidden, recorded
        return last[3]

    def recorded_for(self, policy: Policy) -> Recorded:
        """Return the prefill that a policy branches from."""
        return self.recorded(
            sums=policy.reads_column_sums, prune=policy.prune, hidden=policy.reads_hidden_states
        )

    def policy(self, spec: str) -> Policy:
        """Return the policy of a spec for this sample; one budget is divided for its prompt.

        Raises:
            InvalidInput: the oracle, for a sample without evidence.
        """
        policy = resolved(spec, self._evidence() if is_oracle(spec) else ())
        return divided_for(self.loaded.model, policy, [self.cut])

    def _evidence(self) -> list[int]:
        """Return the evidence tokens among those that are compressed."""
        sample = self.sample
        if not sample.evidence:
            raise InvalidInput(
                f"the samples of {self.task.name} do not say what shows the answer, which oracle "
                "needs. Leave oracle out of --methods."
            )
        spans = tokens_of(self.loaded, self.prompt, sample.images, sample.evidence)
        return [token for span in spans for token in span if token < self.cut]


def read_prompt(
    loaded: Loaded,
    task: Task,
    sample: Sample,
    protocol: Protocol,
    *,
    timed: bool,
    longest_prompt: int | None,
) -> Reading:
    """Prepare a sample's prompt.

    Raises:
        InvalidInput: no prompt can be built, or it cannot be cut where its question begins.
    """
    loaded, conversation = asked_in(loaded, task, sample)
    if task.fit:
        sample = task.fit(loaded.tokenizer, sample)
    if longest_prompt:
        sample = _within(loaded, task, sample, longest_prompt)
    prompt = _read(loaded, task, sample)
    cut = prompt.tokens
    if protocol == "query-agnostic":
        cut = _question_start(loaded, prompt, sample)
    facts: dict[str, Any] = {
        "seen": seen_sizes(prompt.inputs, loaded.model.config),
        "model_type": loaded.model.config.model_type,
    }
    if "box" in sample.facts and sample.images:  # the answer is a position on the image
        facts["view"] = view_of(loaded, prompt, sample.images)
    sample = replace(sample, facts={**sample.facts, **facts})
    return Reading(loaded, task, sample, prompt, cut, timed, conversation)


def asked_in(loaded: Loaded, task: Task, sample: Sample) -> tuple[Loaded, str]:
    """Return the model with the template for a sample's prompt, and that conversation's name, or ""
    for the model's own template.

    A processor that takes videos has its own template for them, as the authors' conversations have
    no place for videos. For others frames are images.
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


def _within(loaded: Loaded, task: Task, sample: Sample, limit: int) -> Sample:
    """Shorten a sample to ``limit`` tokens, images included, by cutting its middle.

    The rest of the question stays the question. If images are dropped, the evidence is dropped,
    too.
    """
    costs: list[int] = []
    if sample.videos:
        raise InvalidInput(
            f"sample {sample.name} has a video, which --longest-prompt cannot shorten. Leave it "
            "out, and sample fewer frames with --frames or the task's frames=N."
        )
    if sample.images:
        costs = tokens_of_images(loaded, _read(loaded, task, sample), sample.images)
    text, images = without_middle(loaded.tokenizer, sample.text, sample.images, costs, limit)
    if text == sample.text and len(images) == len(sample.images):
        return sample
    question = sample.question if text.endswith(sample.question) else text
    context = text.removesuffix(question)
    evidence = sample.evidence if len(images) == len(sample.images) else ()
    return replace(
        sample, context=context, question=question, between="", images=images, evidence=evidence
    )


def _question_start(loaded: Loaded, prompt: Prompt, sample: Sample) -> int:
    """Return the index of the question's first token in the prompt."""
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
    """Cut the prompt's inputs to the first tokens, where an input has one number per token."""
    if cut == prompt.tokens:
        return prompt.inputs
    return {
        name: value[:, :cut]
        if isinstance(value, Tensor) and value.ndim == 2 and value.shape[1] == prompt.tokens
        else value
        for name, value in prompt.inputs.items()
    }


def view_of(loaded: Loaded, prompt: Prompt, images: Sequence[Image.Image]) -> Box | None:
    """Return the part of the first image that the model sees, in the image's pixels.

    Smaller if its processor crops, larger if it pads; None if unknown.
    """
    try:
        return on_images(loaded, prompt, images)[0].grids[0].on(images[0].size)
    except InvalidInput:
        return None


def tokens_of_images(loaded: Loaded, prompt: Prompt, images: Sequence[Image.Image]) -> list[int]:
    """Return the number of tokens of each image; an equal share if unknown."""
    try:
        return [len(image.indices) for image in on_images(loaded, prompt, images)]
    except InvalidInput:
        return [-(-prompt.visual_tokens // prompt.images)] * prompt.images
