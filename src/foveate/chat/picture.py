"""Picture of what is stored of a turn's images."""

from __future__ import annotations

import torch
from PIL import Image

from foveate.chat.answering import Conversation, read
from foveate.chat.history import check_pixels, new_of
from foveate.chat.turns import Turns
from foveate.errors import InvalidInput
from foveate.hf.attach.session import held_share
from foveate.hf.layer.support import foveate_layers
from foveate.hf.model.modality import visual_token_ids
from foveate.models.token_grids import image_tokens, not_known
from foveate.pictures import kept_picture
from foveate.prompts.images import to_image
from foveate.prompts.messages import media_of, text_of


def draw_turn(turns: Turns, now: Conversation, turn: int) -> Image.Image:
    """Draw the images of a turn, with fog over patches that few KV heads store.

    Raises:
        InvalidInput: it has no images, or no pixels of them, or videos.
    """
    record, new, wording = now.turns[turn], new_of(now, turn), turns.wording
    sources, videos = media_of(new)
    if videos or not sources:
        reason = "has videos" if videos else "has no image"
        raise InvalidInput(f"turn {turn} {reason}, and a picture shows images only.")
    check_pixels(new)
    earlier = now.messages[: record.first]
    text = wording.render(new)
    if earlier:
        text = wording.around((*earlier, *new), record.first - 1)[1]
    model = turns.answerer.model
    part = read(model, wording, text, new, begins=not earlier)
    end = record.start + part.ids.shape[1]
    if not torch.equal(part.ids, now.ids[:, record.start : end]):
        raise InvalidInput(
            f"turn {turn} was read again together with others, so its tokens cannot be located."
        )
    images = [to_image(image, f"images[{number}]") for number, image in enumerate(sources)]
    visual = part.ids.new_tensor(visual_token_ids(model.config))
    tokens = image_tokens(
        torch.isin(part.ids[0], visual).cpu(),
        {"input_ids": part.ids, **part.media},
        [image.size for image in images],
        model.config,
        wording.processor,
    )
    note = f"The images show no patches: {not_known(model.config, wording.processor)}."
    share = held_share(foveate_layers(now.cache))[0, record.start : end].cpu()
    caption = f"{float(share.mean()):.0%} of the turn's {len(share)} tokens stored: "
    row = f"turn {turn}", caption + " ".join(map(text_of, new)), share
    return kept_picture(images, tokens, [row], note if tokens is None else "")
