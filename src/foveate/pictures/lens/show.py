"""From a model and a prompt to a lens, for notebooks and for the command line."""

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
from foveate.pictures.lens.chosen import Answers, Readings, Tell, answers, seen
from foveate.pictures.lens.page import page, page_data, words
from foveate.pictures.views import views_of
from foveate.policies.policy import Policy


@dataclass(frozen=True)
class Lens:
    """A page on what policies keep of a prompt. A notebook shows it; ``html`` is all of it, and
    ``answers`` what the model says on it, if it was asked.
    """

    html: str = field(repr=False)
    answers: Answers | None = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        """The page in a frame that can run its script, and reach nothing of the notebook."""
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" title="Foveate lens" '
            'style="width: 100%; height: 46rem; border: 0"></iframe>'
        )

    def save(self, path: str | Path) -> Path:
        """Writes the page to a file."""
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
    """What a session's policy keeps of a prompt, and what others would: a page to look around in.

    Call it outside the session's block, before or after: it reads the prompt itself, with the full
    cache, and shows what a block of each policy keeps when the prompt is complete.

    Args:
        session: of ``compress``; its policy is shown first.
        reader: the processor that made the inputs; of a text, the tokenizer. Images have patches on
            the page where it is known what the processor does to them, and the page says where not.
        inputs: of one prompt, as ``generate`` takes them, with ``input_ids`` [1, tokens].
        images: the prompt's, in order.
        methods: policies or specs to stand beside it, such as "mixkv".
        budgets: what each of them keeps, and the session's policy too, instead of its own budget; a
            slider goes through them.
        max_new_tokens: the most tokens of a greedy answer, which the page then has of the full
            cache and of each method at each budget: a generation for each. Without it, none.
        times: seconds, one for each of the first images, which are frames of a video then: the page
            has a time line of how much of each is kept.

    Raises:
        InvalidInput: a batch, padding, another number of images than the prompt's, or more times
            than images.
        InvalidParameter: answers of less than a token.
        AlreadyCompressing: called inside a block.
        MissingPackage: jinja2 is not installed.
    """
    if not isinstance(session, Session):
        raise InvalidInput(
            f"a lens is of a session, not of a {type(session).__name__}: give "
            "foveate.lens(session, processor, inputs), with session = foveate.compress(...)."
        )
    policies = compared([session.policy, *methods], budgets)
    name = model_name(session.model)
    return lens_of(
        session.model, reader, inputs, images, policies, name, max_new_tokens, times=times
    )


def compared(methods: Sequence[str | Policy], budgets: Sequence[str]) -> list[list[Policy]]:
    """Each method at each budget; equal ones once. Without budgets, each at its own."""
    comparisons = [
        [one]
        if isinstance(one, Policy) and not budgets
        else at_each(one.spec if isinstance(one, Policy) else one, budgets)
        for one in methods
    ]
    return list({tuple(policy.spec for policy in each): each for each in comparisons}.values())


def lens_of(
    model: PreTrainedModel,
    reader: Any,
    inputs: Mapping[str, Any],
    images: Sequence[Image.Image],
    policies: Sequence[Sequence[Policy]],
    name: str,
    max_new_tokens: int | None = None,
    tell: Tell = lambda policy, done, of: None,
    times: Sequence[float] = (),
) -> Lens:
    """The same, of a model of that name and of policies: as many of each method as it has budgets.
    ``tell`` is told of every answer before it is given.

    Raises:
        InvalidInput, InvalidParameter: as ``lens`` does.
        MissingPackage: jinja2 is not installed.
    """
    if max_new_tokens is not None and max_new_tokens < 1:
        raise InvalidParameter(
            f"max_new_tokens={max_new_tokens}: an answer has a token at least. Leave it out for a "
            "page without answers."
        )
    if len(times) > len(images):
        raise InvalidInput(
            f"{len(times)} times were given for {len(images)} image(s): give one for each frame."
        )
    ids = _one_prompt(inputs)
    visual = torch.isin(ids, ids.new_tensor(visual_token_ids(model.config)))
    where = image_tokens(visual, inputs, [image.size for image in images], model.config, reader)
    note = "" if where is not None else f"No patches here: {not_known(model.config, reader)}."
    readings = Readings(model, inputs)
    prompts = seen(readings, policies, reader)
    said = answers(readings, policies, reader, max_new_tokens, tell) if max_new_tokens else None
    read = words(getattr(reader, "tokenizer", reader), ids.tolist())
    views = views_of(images, where, times)
    line = [] if where is None else [*zip(times, (one.indices for one in where), strict=False)]
    return Lens(page(page_data(name, prompts, read, views, note, said, line)), said)


def _one_prompt(inputs: Mapping[str, Any]) -> torch.Tensor:
    """The ids of the one prompt."""
    ids, mask = inputs.get("input_ids"), inputs.get("attention_mask")
    if ids is None or ids.ndim != 2 or ids.shape[0] != 1:
        shape = None if ids is None else tuple(ids.shape)
        raise InvalidInput(
            f"a lens shows one prompt, and input_ids has shape {shape}: pass input_ids [1, tokens] "
            "as the processor makes them of one text."
        )
    if mask is not None and not bool(mask.all()):
        raise InvalidInput(
            f"a lens shows a prompt without padding, and {int((mask == 0).sum())} of "
            f"{mask.shape[1]} tokens are masked. Have the processor read this prompt alone."
        )
    return ids[0]  # type: ignore[no-any-return]
