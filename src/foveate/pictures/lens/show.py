"""Lens of a model and a prompt, for notebooks and for the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import PreTrainedModel

from foveate.compression.labels import at_each
from foveate.data import files
from foveate.errors import InvalidInput, InvalidParameter
from foveate.hf import Session
from foveate.hf.layer.support import model_name
from foveate.hf.model.modality import visual_token_ids
from foveate.models.token_grids import image_tokens, not_known
from foveate.pictures.lens.choices import Answers, Progress, Readings, answers, seen
from foveate.pictures.lens.page import page, page_data, words
from foveate.pictures.views import views_of
from foveate.policies.policy import Policy


@dataclass(frozen=True)
class Lens:
    """Page that shows which tokens policies keep; notebooks display it.

    ``html`` is the complete page, ``answers`` are its answers, if there are any.
    """

    html: str = field(repr=False)
    answers: Answers | None = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        """Return the page in a sandboxed frame, whose script cannot access the notebook."""
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" title="Foveate lens" '
            'style="width: 100%; height: 46rem; border: 0"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Write the page to a file, and return its path."""
        path = Path(path)
        files.write(path, self.html)
        return path


def lens(
    session: Session,
    reader: Any,
    inputs: Mapping[str, Any],
    images: Sequence[Image.Image] = (),
    *,
    methods: Sequence[str | Policy] = (),
    budgets: Sequence[str] = (),
    max_new_tokens: int | None = None,
    times: Sequence[float] = (),
) -> Lens:
    """Build an interactive page that shows which tokens a session's policy and others keep.

    Call it outside the session's ``with`` block, before or after. It reads the prompt itself, with
    the full cache, and shows the state at the end of the prompt.

    Args:
        session: the result of ``compress``; its policy comes first.
        reader: the processor of the inputs, or the tokenizer for a text. Patches are drawn on
            images if the processor's crops are known; otherwise a note says why not.
        inputs: the inputs of one prompt for ``generate``, with ``input_ids`` [1, tokens].
        images: the prompt's images, in order.
        methods: policies or specs to compare, e.g. "mixkv".
        budgets: budgets for all policies, also the session's, with a slider.
        max_new_tokens: maximum length of greedy answers, which are generated with the full cache
            and under each method at each budget; None: no answers.
        times: times in seconds of the first images, which are frames of a video; the page then has
            a time line of kept tokens.

    Raises:
        InvalidInput: a batch, padding, a number of images that is not the prompt's, or more times
            than images.
        InvalidParameter: ``max_new_tokens`` is below 1.
        AlreadyCompressing: called inside a ``compress()`` context.
        MissingPackage: jinja2 is not installed.
    """
    if not isinstance(session, Session):
        raise InvalidInput(
            f"a lens needs a session, not a {type(session).__name__}: call "
            "foveate.lens(session, processor, inputs), with session = foveate.compress(...)."
        )
    policies = compared([session.policy, *methods], budgets)
    name = model_name(session.model)
    return lens_of(
        session.model, reader, inputs, images, policies, name, max_new_tokens, times=times
    )


def compared(methods: Sequence[str | Policy], budgets: Sequence[str]) -> list[list[Policy]]:
    """Return each method at each budget, without duplicates; without budgets, at its own."""
    comparisons = [
        [method]
        if isinstance(method, Policy) and not budgets
        else at_each(method.spec if isinstance(method, Policy) else method, budgets)
        for method in methods
    ]
    return list({tuple(policy.spec for policy in row): row for row in comparisons}.values())


def lens_of(
    model: PreTrainedModel,
    reader: Any,
    inputs: Mapping[str, Any],
    images: Sequence[Image.Image],
    policies: Sequence[Sequence[Policy]],
    name: str,
    max_new_tokens: int | None = None,
    report: Progress = lambda policy, done, of: None,
    times: Sequence[float] = (),
) -> Lens:
    """Build a lens without a session: ``policies`` has a list for each method, one per budget.

    ``name`` is the model's name on the page; ``report`` is called before each answer.

    Raises:
        InvalidInput, InvalidParameter: as ``lens`` raises.
        MissingPackage: jinja2 is not installed.
    """
    if max_new_tokens is not None and max_new_tokens < 1:
        raise InvalidParameter(
            f"max_new_tokens={max_new_tokens}: give at least 1, or leave it out for a page without "
            "answers."
        )
    if len(times) > len(images):
        raise InvalidInput(
            f"there are {len(times)} times for {len(images)} image(s): give one for each frame."
        )
    ids = _check_single_prompt(inputs)
    visual = torch.isin(ids, ids.new_tensor(visual_token_ids(model.config)))
    tokens = image_tokens(visual, inputs, [image.size for image in images], model.config, reader)
    note = (
        "" if tokens is not None else f"Patches are not shown: {not_known(model.config, reader)}."
    )
    readings = Readings(model, inputs)
    prompts = seen(readings, policies, reader)
    results = (
        answers(readings, policies, reader, max_new_tokens, report) if max_new_tokens else None
    )
    read = words(getattr(reader, "tokenizer", reader), ids.tolist())
    views = views_of(images, tokens, times)
    line = (
        [] if tokens is None else [*zip(times, (image.indices for image in tokens), strict=False)]
    )
    return Lens(page(page_data(name, prompts, read, views, note, results, line)), results)


def _check_single_prompt(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Return the ids of the prompt; raises InvalidInput for a batch or padding."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if ids is None or ids.ndim != 2 or ids.shape[0] != 1:
        shape = None if ids is None else tuple(ids.shape)
        raise InvalidInput(
            f"a lens shows one prompt, and input_ids has shape {shape}: pass input_ids [1, tokens] "
            "of one text, as the processor returns them."
        )
    if mask is not None and not bool(mask.all()):
        raise InvalidInput(
            f"a lens shows a prompt without padding, and {int((mask == 0).sum())} of "
            f"{mask.shape[1]} tokens are masked. Have the processor read this prompt alone."
        )
    return ids[0]  # type: ignore[no-any-return]
